"""Load and unload LoRA adapters while a model runs, as in vLLM; off unless --allow-lora-updates is given."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ..body_types import Body
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.protocol import Ask
from .fields import Name

__all__ = ["LoadAdapterBody", "UnloadAdapterBody", "change_adapters", "load_adapter", "unload_adapter"]


class LoadAdapterBody(Body, kw_only=True, forbid_unknown_fields=True):
    """An adapter to load: its name in requests, and its GGUF file or PEFT folder on the server's machine."""

    lora_name: Name
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    load_inplace: bool = False
    base_model_name: Name | None = None
    model: Name | None = None


class UnloadAdapterBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The adapter to unload."""

    lora_name: Name
    lora_int_id: int | None = None
    model: Name | None = None


async def change_adapters(context: RequestContext[Any], name: str, verb: str, values: dict[str, Any]) -> None:
    """Have a model's worker change its adapters, and remember the result for when it is loaded again."""
    engine: EngineClient = context.service.engine(name)
    try:
        answer = await context.ask(engine, Ask(0, verb, values))  # type: ignore[arg-type]
    except ApiError as error:
        if error.code != "model_not_loaded":
            raise
        raise ApiError(400, "adapter_not_loaded", error.message, "lora_path") from None
    kept = [(adapter, path, scale) for adapter, path, scale in answer["kept"]]
    context.service.kept_adapters[name] = kept
    context.service.unloaded_adapters.note(engine.info.loras, answer["info"]["loras"])
    adapters = [(path, scale) for path, scale in answer["info"]["adapters"]]
    engine.keep_adapters({"adapters": adapters, "loras": answer["info"]["loras"]}, kept)


def _check_allowed(context: RequestContext[Any]) -> None:
    if not context.service.settings.allow_lora_updates:
        text = "loading and unloading adapters is off: start the server with --allow-lora-updates"
        raise ApiError(403, "not_allowed", text)


def _told(text: str) -> Reply:
    return Reply(text.encode(), media_type=b"text/plain; charset=utf-8")


async def load_adapter(context: RequestContext[LoadAdapterBody]) -> Reply:
    """Load an adapter beside the running model; requests name it as their model."""
    _check_allowed(context)
    body, service = context.body, context.service
    if body.lora_name in service.names:
        raise ApiError(400, "invalid_value", f"{body.lora_name!r:.80} is the name of a model", "lora_name")
    name = service.name_of(body.base_model_name or body.model)
    values = {"path": body.lora_path, "name": body.lora_name, "replace": body.load_inplace}
    await change_adapters(context, name, "load_adapter", values)
    return _told(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(context: RequestContext[UnloadAdapterBody]) -> Reply:
    """Unload an adapter; requests that run with it go on."""
    _check_allowed(context)
    adapter, service = context.body.lora_name, context.service
    name = service.name_of(context.body.model) if context.body.model else service.exactly(adapter)
    if name == adapter or adapter not in service.engine(name).info.loras:
        raise ApiError(404, "adapter_not_found", f"no such adapter: {adapter!r:.80}", "lora_name")
    await change_adapters(context, name, "unload_adapter", {"name": adapter})
    return _told(f"Success: LoRA adapter '{adapter}' removed successfully.")
