"""Quire on Ray Serve: ``serve run quire.ray:app model=MODEL replicas=2`` (pip install "quire-llm[ray]").

Routes, limits and errors are those of ``quire serve``; prompts go to the replica that knows their beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["app"]


def app(given: dict[str, Any]) -> Application:
    """Return the application for ``serve run`` or ``serve deploy``.

    Args:
        given: ``model``: as for ``quire serve``; without it, the package's.  ``options``: options of ``quire serve``, a
            list or a line.  ``replicas``: their number, 1; with ``max_replicas``, the least.  ``ingresses``: processes
            that read requests, 1.  ``num_cpus``, ``num_gpus``: of each replica, as Ray counts them.
            ``max_ongoing_requests``: of each replica, 256.

    Raises:
        RequestError: An unknown name.
        UnsupportedError: Ray Serve is not installed.
    """
    try:
        from .application import build
    except ImportError:
        raise UnsupportedError('[ray] needs Ray Serve: pip install "quire-llm[ray]"') from None
    return build(given)
