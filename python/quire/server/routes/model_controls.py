"""vLLM's routes for training loops: pause, sleep and new weights.  Off unless the operator turns them on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from ..body_types import TimedBody
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.protocol import Ask
from .fields import Name

__all__ = [
    "WeightsBody", "is_paused", "is_sleeping", "pause", "reset_prefix_cache", "resume", "sleep", "update_weights",
    "wake_up",
]  # fmt: skip


class WeightsBody(TimedBody, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint folder or file below ``--weights-dir``."""

    path: Annotated[str, Meta(min_length=1, max_length=1024)]
    model: Name | None = None


async def pause(context: RequestContext[None]) -> Reply:
    """Stop computing: ``?mode=abort|wait|keep`` for requests in flight, ``?clear_cache=true|false``."""
    clears = _one(context, "clear_cache", "true", ("true", "false"))
    mode = _one(context, "mode", "abort", ("abort", "wait", "keep"))
    await _control(context, "pause", mode=mode, clears=clears == "true" and mode != "keep")
    return Reply.json({"status": "paused"})


async def resume(context: RequestContext[None]) -> Reply:
    """Go on after a pause."""
    await _control(context, "resume")
    return Reply.json({"status": "resumed"})


async def is_paused(context: RequestContext[None]) -> Reply:
    """Tell if the model is paused."""
    return Reply.json({"is_paused": (await _control(context, "state"))["is_paused"]})


async def sleep(context: RequestContext[None]) -> Reply:
    """Free the memory of weights and cache: ``?level=1|2``, ``?mode=abort|wait`` for requests in flight."""
    mode = _one(context, "mode", "abort", ("abort", "wait"))
    await _control(context, "sleep", level=int(_one(context, "level", "1", ("1", "2"))), mode=mode)
    return Reply(b"")


async def wake_up(context: RequestContext[None]) -> Reply:
    """Load the model again: ``?tags=weights`` and ``?tags=kv_cache``, both if there are none."""
    tags = context.query().get("tags")
    if unknown := sorted(set(tags or ()) - {"weights", "kv_cache"}):
        text = f"invalid tag {unknown[0]!r:.40}: expected weights or kv_cache"
        raise ApiError(400, "invalid_value", text, "tags")
    await _control(context, "wake_up", tags=tags)
    return Reply(b"")


async def is_sleeping(context: RequestContext[None]) -> Reply:
    """Tell if the model sleeps."""
    return Reply.json({"is_sleeping": (await _control(context, "state"))["is_sleeping"]})


async def reset_prefix_cache(context: RequestContext[None]) -> Reply:
    """Let no later request find what is cached."""
    await _control(context, "reset_prefix_cache")
    return Reply(b"")


async def update_weights(context: RequestContext[WeightsBody]) -> Reply:
    """Replace the model's weights by those of a checkpoint.  Requests in flight fail."""
    path = _below(context.service.settings.weights_dir, context.body.path)
    model = await _control(context, "update_weights", path=str(path))
    context.service.weights[model["name"]] = str(path)
    return Reply.json({"success": True})


def _below(folder: str | None, name: str) -> Path:
    """Return a path below the folder of weights.  ApiError 403 without one, 404 for anything that is not below it."""
    if folder is None:
        raise ApiError(403, "not_allowed", "new weights need a folder: start the server with --weights-dir DIR")
    root = Path(folder).resolve()
    try:
        path = (root / name).resolve(strict=True)
    except (OSError, ValueError):
        path = root
    if path == root or not path.is_relative_to(root):
        raise ApiError(404, "weights_not_found", f"no weights {name!r:.80} in the folder of weights", "path")
    return path


def _one(context: RequestContext[Any], name: str, default: str, allowed: tuple[str, ...]) -> str:
    given = context.query().get(name, [default])[-1].lower()
    if given not in allowed:
        text = f"invalid {name} {given!r:.40}: expected {', '.join(allowed)}"
        raise ApiError(400, "invalid_value", text, name)
    return given


async def _control(context: RequestContext[Any], verb: str, **values: Any) -> dict[str, Any]:
    """Have the model do something, and return its state and its name.  ApiError 403 unless the operator allows it."""
    service = context.service
    if not service.settings.training_routes:
        text = "clients may not pause the model or change its weights: start the server with --training-routes"
        raise ApiError(403, "not_allowed", text)
    named = context.body.model if isinstance(context.body, WeightsBody) else context.query().get("model", [None])[-1]
    model = await service.find(named)
    if named is not None and model != service.exactly(named):  # the only model answers to any name otherwise
        known = ", ".join(service.names[:20])
        raise ApiError(404, "model_not_found", f"no such model: {named!r:.80} (available: {known})", "model")
    engine = await context.closing.enter_async_context(service.pinned(model, context.caller))
    try:
        state: dict[str, Any] = await context.ask(engine, Ask(0, "control", {"verb": verb, "values": values}))
    except ApiError as error:
        if error.code != "model_not_loaded":
            raise
        raise ApiError(400, "weights_not_loaded", error.message, "path") from None
    if verb == "update_weights":
        engine.reload_from(values["path"])
    if state["is_sleeping"]:
        service.sleeping[model] = tuple(state["asleep"])
    else:
        service.sleeping.pop(model, None)
    (service.paused.add if state["is_paused"] else service.paused.discard)(model)
    engine.keep_controls(state["is_paused"], state["asleep"])
    return {**state, "name": model}
