"""The deployments of Ray Serve, and how many replicas there are."""

from __future__ import annotations

import shlex
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig

from ..errors import RequestError
from .replicas import Ingress, Server

__all__ = ["autoscale", "build"]

_NAMES = ("model", "options", "replicas", "max_replicas", "ingresses", "num_cpus", "num_gpus", "max_ongoing_requests",
          "queued_tokens", "multiplexed")  # fmt: skip
_MOST_HELD = 0.9  # share of a replica's cache
_QUEUED_TOKENS = 8192
_ROUTER = "quire.ray.router:PrefixRouter"


def build(given: dict[str, Any]) -> Application:
    """Return what ``quire.ray.app`` returns."""
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
        policy = AutoscalingPolicy(policy_function="quire.ray.application:autoscale")
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
    replicas = server.bind(arguments, int(given.get("queued_tokens", _QUEUED_TOKENS)))
    return ingress.bind(replicas, bool(int(given.get("multiplexed", 0))))


def autoscale(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return how many replicas to run, by the prompt tokens that wait and the caches that sequences fill.

    As many more as the queue is full, at most as many again, or one more where caches are full; one less if nothing
    waits and the rest has room.
    """
    n = context.current_num_replicas
    metrics = context.aggregated_metrics or {}
    queued = sum(metrics.get("queued", {}).values())  # in limits of one replica
    held = list(metrics.get("cache_held", {}).values())
    mean = sum(held) / len(held) if held else 0.0
    if queued > n:
        n += min(n, int(queued / n))
    elif mean > _MOST_HELD:
        n += 1
    elif queued == 0 and n > 1 and mean * n / (n - 1) < _MOST_HELD / 2:
        n -= 1
    return max(context.capacity_adjusted_min_replicas, min(n, context.capacity_adjusted_max_replicas)), {}
