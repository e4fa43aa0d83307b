"""Quire on Ray Serve: ``serve run quire.ray:app model=MODEL replicas=2`` (pip install "quire-llm[ray]").

Routes, limits and errors are those of ``quire serve``; prompts go to the replica that knows their beginning.
"""

from __future__ import annotations

import shlex
from typing import Any

from ..errors import RequestError, UnsupportedError

try:
    from ray import serve
    from ray.serve import Application
    from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig
except ImportError:
    raise UnsupportedError('[ray] needs Ray Serve: pip install "quire-llm[ray]"') from None

from .replicas import Ingress, Server

__all__ = ["app", "autoscale"]

_NAMES = ("model", "options", "replicas", "max_replicas", "ingresses", "num_cpus", "num_gpus", "max_ongoing_requests")
_MOST_HELD = 0.9  # share of a replica's cache
_ROUTER = "quire.ray.router:PrefixRouter"


def app(given: dict[str, Any]) -> Application:
    """Return the application for ``serve run`` or ``serve deploy``.

    Args:
        given: ``model``: as for ``quire serve``; without it, the package's.  ``options``: options of ``quire serve``, a
            list or a line.  ``replicas``: their number, 1; with ``max_replicas``, the least (``autoscale``).
            ``ingresses``: processes that read requests, 1.  ``num_cpus``, ``num_gpus``: of each replica, as Ray counts
            them.  ``max_ongoing_requests``: of each replica, 256.

    Raises:
        RequestError: An unknown name.
    """
    unknown = set(given) - set(_NAMES)
    if unknown:
        raise RequestError(f"[ray] unknown argument {min(unknown)!r:.80} (known: {', '.join(_NAMES)})")
    options = given.get("options", ())
    arguments = shlex.split(options) if isinstance(options, str) else [str(each) for each in options]
    if given.get("model") is not None:
        arguments.insert(0, str(given["model"]))
    n, most = int(given.get("replicas", 1)), given.get("max_replicas")
    sizes: dict[str, Any] = {"num_replicas": n}
    if most is not None:
        policy = AutoscalingPolicy(policy_function="quire.ray:autoscale")
        sizes = {"autoscaling_config": AutoscalingConfig(min_replicas=n, max_replicas=int(most), policy=policy)}
    resources = {name: float(given[name]) for name in ("num_cpus", "num_gpus") if name in given}
    server = serve.deployment(
        Server,
        name="Server",
        ray_actor_options=resources,
        max_ongoing_requests=int(given.get("max_ongoing_requests", 256)),
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        graceful_shutdown_timeout_s=40,
        health_check_period_s=2,
        health_check_timeout_s=5,
        **sizes,
    )
    ingress = serve.deployment(
        Ingress,
        name="Ingress",
        num_replicas=int(given.get("ingresses", 1)),
        max_ongoing_requests=4096,
        ray_actor_options={"num_cpus": 0.1},
    )
    return ingress.bind(server.bind(arguments))


def autoscale(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return how many replicas to run: one more while requests wait or caches are full, one less if half would do."""
    n = context.current_num_replicas
    metrics = context.aggregated_metrics or {}
    waiting = sum(metrics.get("waiting", {}).values())
    held = list(metrics.get("cache_held", {}).values())
    mean = sum(held) / len(held) if held else 0.0
    if waiting > n or mean > _MOST_HELD:
        n += 1
    elif waiting == 0 and n > 1 and mean * n / (n - 1) < _MOST_HELD / 2:
        n -= 1
    return max(context.capacity_adjusted_min_replicas, min(n, context.capacity_adjusted_max_replicas)), {}
