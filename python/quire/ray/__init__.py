"""Quire on Ray Serve: ``serve run quire.ray:app model=MODEL replicas=2`` (pip install "quire-llm[ray]").

Routes, limits and errors are those of ``quire serve``; prompts go to the replica that knows their beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["app", "deploy"]

_MISSING = '[ray] Ray Serve is not installed: pip install "quire-llm[ray]"'


def app(given: dict[str, Any]) -> Application:
    """Return the application for ``serve run`` or ``serve deploy``.

    Args:
        given: ``model``: as for ``quire serve``; without it, the package's.  ``options``: options of ``quire serve``, a
            list or a line.  ``replicas``: their number, 1; with ``max_replicas``, the least.  ``ingresses``: processes
            that read requests, 1.  ``num_cpus``, ``num_gpus``: of each replica, as Ray counts them.
            ``max_ongoing_requests``: of each replica, 256.  ``queued_tokens``: prompt tokens that may wait for each
            replica before others are added, 8192.  ``multiplexed``: 1 if replicas serve several models or adapters, so
            that requests for one of them go to replicas that have used it.

    Raises:
        RequestError: An unknown name.
        UnsupportedError: Ray Serve is not installed.
    """
    try:
        from .application import build
    except ImportError:
        raise UnsupportedError(_MISSING) from None
    return build(given)


def deploy(
    address: str,
    given: Mapping[str, str],
    arguments: Sequence[str],
    *,
    host: str,
    port: int,
    check: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    """Run the application on a cluster until SIGINT or SIGTERM: ``quire serve --ray``.

    Args:
        address: Of the cluster, as for ``ray.init``.
        given: Arguments of ``app`` but for the model and the options.
        arguments: Those of ``quire serve``.
        host, port: Where Ray Serve shall listen, unless it runs already; port 0: any free port.
        check: Called with the address on which it listens; raises if that is not safe.
        say: Receives the line with the URL.

    Raises:
        RequestError: An unknown name, no cluster at the address, or replicas that do not start.
        UnsupportedError: Ray Serve is not installed.
    """
    try:
        from .cluster import run
    except ImportError:
        raise UnsupportedError(_MISSING) from None
    run(address, given, arguments, host=host, port=port, check=check, say=say)
