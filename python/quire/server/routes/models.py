"""The models that there are."""

from __future__ import annotations

from typing import Any

from ..calls import Call, Reply
from ..engine import Engine, EngineState
from ..failures import ApiError

__all__ = ["list_models", "show_model"]


def model_object(name: str, engine: Engine | None, created: int) -> dict[str, Any]:
    """A model as OpenAI's interface has it, with what is known of it beside."""
    shown: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "quire"}
    if engine is not None and engine.state is EngineState.READY:
        info = engine.info
        shown["meta"] = {
            "name": info.name,
            "architecture": info.architecture,
            "n_ctx": info.n_ctx,
            "n_vocab": info.n_vocab,
        }
    return shown


async def list_models(call: Call[None]) -> Reply:
    """All models, by every name that they go by."""
    service = call.service
    engines = service.engines()
    data = [
        model_object(name, engines.get(name, engines.get(service.model)), service.created) for name in service.names
    ]
    return Reply.json({"object": "list", "data": data})


async def show_model(call: Call[None]) -> Reply:
    """One model."""
    name = call.path("model")
    if name not in call.service.names:
        raise ApiError(404, "model_not_found", f"the model must be one that there is but is {name!r:.80}", "model")
    return Reply.json(model_object(name, call.engine(name), call.service.created))
