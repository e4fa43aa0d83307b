"""vLLM's routes for training loops: pause, sleep and new weights.  Off unless the operator turns them on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ..body_types import TimedBody
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient, EngineState
from ..worker.protocol import Ask
from .fields import Name

__all__ = [
    "ControlBody", "PauseBody", "ResetBody", "SleepBody", "WakeUpBody", "WeightsBody", "is_paused", "is_sleeping",
    "pause", "reset_prefix_cache", "resume", "sleep", "update_weights", "wake_up",
]  # fmt: skip

_RESTART_CHECK_S = 0.05
_MOST_TRIES = 3  # if the worker ends meanwhile


class ControlBody(TimedBody, kw_only=True, forbid_unknown_fields=True):
    """The model.  Each field may be a query parameter instead."""

    model: Name | None = None


class PauseBody(ControlBody, kw_only=True, forbid_unknown_fields=True):
    """The end of requests in flight, and of the prefix cache.

    ``wait_for_inflight_requests`` is vLLM's older name for the mode ``wait``.
    """

    mode: Literal["abort", "wait", "keep"] | None = None
    clear_cache: bool | None = None
    wait_for_inflight_requests: bool | None = None


class SleepBody(ControlBody, kw_only=True, forbid_unknown_fields=True):
    """The level, which changes nothing here, and what becomes of requests in flight.  All memory is freed."""

    level: Literal[1, 2] | None = None
    mode: Literal["abort", "wait"] | None = None
    refused: ClassVar[dict[str, tuple[object, ...]]] = {"tags": ([],)}


class WakeUpBody(ControlBody, kw_only=True, forbid_unknown_fields=True):
    """The parts to bring back; all of them by default."""

    tags: Annotated[list[Literal["weights", "kv_cache"]], Meta(max_length=8)] | None = None


class ResetBody(ControlBody, kw_only=True, forbid_unknown_fields=True):
    """vLLM's fields with their defaults: requests in flight go on."""

    refused: ClassVar[dict[str, tuple[object, ...]]] = {"reset_running_requests": (False,), "reset_external": (False,)}


class WeightsBody(ControlBody, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint folder or file below ``--weights-dir``."""

    path: Annotated[str, Meta(min_length=1, max_length=1024)]


async def pause(context: RequestContext[PauseBody]) -> Reply:
    """Stop computing, after an end of requests in flight: ``mode`` is ``abort``, ``wait`` or ``keep``."""
    clears = _one(context, "clear_cache", "true", ("true", "false"))
    waits = _one(context, "wait_for_inflight_requests", "false", ("true", "false")) == "true"
    mode = _one(context, "mode", "wait" if waits else "abort", ("abort", "wait", "keep"))
    if waits and mode != "wait":
        text = f"mode {mode!r} cannot be combined with wait_for_inflight_requests"
        raise ApiError(400, "invalid_value", text, "wait_for_inflight_requests")
    await _control(context, "pause", mode=mode, clears=clears == "true" and mode != "keep")
    return Reply.json({"status": "paused"})


async def resume(context: RequestContext[ControlBody]) -> Reply:
    """Go on after a pause."""
    await _control(context, "resume")
    return Reply.json({"status": "resumed"})


async def is_paused(context: RequestContext[None]) -> Reply:
    """Tell if the model is paused."""
    return Reply.json({"is_paused": (await _control(context, "state"))["is_paused"]})


async def sleep(context: RequestContext[SleepBody]) -> Reply:
    """Free the memory of weights and cache."""
    mode = _one(context, "mode", "abort", ("abort", "wait"))
    await _control(context, "sleep", level=int(_one(context, "level", "1", ("1", "2"))), mode=mode)
    return Reply(b"")


async def wake_up(context: RequestContext[WakeUpBody]) -> Reply:
    """Load the model again, or only the parts in ``tags``."""
    tags: list[Any] | None = context.query().get("tags")
    if context.body.tags is not None:
        if tags is not None and sorted(tags) != sorted(context.body.tags):
            raise _contradiction("tags")
        tags = context.body.tags or None
    if unknown := sorted(set(tags or ()) - {"weights", "kv_cache"}):
        text = f"invalid tag {unknown[0]!r:.40}: expected weights or kv_cache"
        raise ApiError(400, "invalid_value", text, "tags")
    await _control(context, "wake_up", tags=tags)
    return Reply(b"")


async def is_sleeping(context: RequestContext[None]) -> Reply:
    """Tell if the model sleeps."""
    return Reply.json({"is_sleeping": (await _control(context, "state"))["is_sleeping"]})


async def reset_prefix_cache(context: RequestContext[ResetBody]) -> Reply:
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
    """Return a field of the body or of the query.  ApiError 400 if they contradict each other."""
    found = context.query().get(name)
    value = None if found is None else found[-1].lower()
    said = getattr(context.body, name)
    if said is not None:
        said = str(said).lower()
        if value not in (None, said):
            raise _contradiction(name)
        value = said
    if value is None:
        return default
    if value not in allowed:
        text = f"invalid {name} {value!r:.40}: expected {', '.join(allowed)}"
        raise ApiError(400, "invalid_value", text, name)
    return value


def _contradiction(name: str) -> ApiError:
    return ApiError(400, "invalid_value", f"the query and the body have different values of {name}", name)


def _named(context: RequestContext[Any]) -> str | None:
    """Return the model that the query or the body names."""
    value: str | None = context.query().get("model", [None])[-1]
    said: str | None = None if context.body is None else context.body.model
    if said is not None and value not in (None, said):
        raise _contradiction("model")
    return value if said is None else said


async def _asked(context: RequestContext[Any], engine: EngineClient, ask: Ask) -> dict[str, Any]:
    """Ask the worker once it is there.  One that ends meanwhile is asked again, but never to load the same weights."""
    for n_tries in range(1, _MOST_TRIES + 1):
        while engine.state in (EngineState.HUNG, EngineState.RESTARTING):
            await asyncio.sleep(_RESTART_CHECK_S)
        try:
            state: dict[str, Any] = await context.ask(engine, ask)
            return state
        except ApiError as error:
            is_lost = error.code in ("worker_lost", "model_not_ready")
            if not is_lost or n_tries == _MOST_TRIES or ask.values["verb"] == "update_weights":
                raise
            await asyncio.sleep(_RESTART_CHECK_S)
    raise AssertionError


async def _control(context: RequestContext[Any], verb: str, **values: Any) -> dict[str, Any]:
    """Have the model do something, and return its state and its name.  ApiError 403 unless the operator allows it."""
    service = context.service
    if not service.settings.training_routes:
        text = "clients may not pause the model or change its weights: start the server with --training-routes"
        raise ApiError(403, "not_allowed", text)
    named = _named(context)
    model = await service.find(named)
    if named is not None and model != service.exactly(named):  # the only model answers to any name otherwise
        known = ", ".join(service.names[:20])
        raise ApiError(404, "model_not_found", f"no such model: {named!r:.80} (available: {known})", "model")
    engine = await context.closing.enter_async_context(service.pinned(model, context.caller))
    try:
        state = await _asked(context, engine, Ask(0, "control", {"verb": verb, "values": values}))
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
