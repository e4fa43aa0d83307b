"""List, show, load and unload models."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..body_types import Body
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient, EngineState
from ..worker.protocol import Ask
from .adapter_scales import shown_adapters
from .fields import Name

__all__ = [
    "ModelBody",
    "check_may_close",
    "list_active",
    "list_files",
    "list_models",
    "load",
    "reload",
    "show_model",
    "unload",
]


# llama.cpp's tokenizer numbers, by the names in model files.
_VOCABULARIES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5}


async def model_object(context: RequestContext[None], name: str) -> dict[str, Any]:
    """Return a model in OpenAI's format, with more details in llama.cpp's format."""
    service = context.service
    engine, created = service.engines().get(service.exactly(name)), service.created
    shown: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "quire"}
    shown |= {"aliases": [other for other in service.names_of(name) if other != name]}
    shown["tags"] = list(service.settings.tags)
    if engine is not None and engine.state is EngineState.READY:
        info = engine.info
        shown["meta"] = {
            "name": info.name,
            "architecture": info.architecture,
            "n_ctx": info.n_ctx,
            "n_vocab": info.n_vocab,
        }
        shown["capabilities"] = ["completion", *(["multimodal"] if info.media else [])]
        shown["architecture"] = {"input_modalities": ["text", *info.media], "output_modalities": ["text"]}
        if info.adapters:
            shown["meta"]["lora_adapters"] = shown_adapters(info)
        with suppress(ApiError):  # the worker may have exited in the meantime
            file = (await context.ask(engine, Ask(0, "describe", {})))["file"]
            shown["meta"] |= _of_file(file, info.architecture)
    return shown


def _of_file(file: dict[str, Any], architecture: str) -> dict[str, Any]:
    keys = file.get("keys", {})
    found = {
        "vocab_type": _VOCABULARIES.get(keys.get("tokenizer.ggml.model", ""), 0),
        "n_ctx_train": keys.get(f"{architecture}.context_length"),
        "n_embd": keys.get(f"{architecture}.embedding_length"),
        "n_params": file.get("n_parameters"),
        "size": file["size_bytes"],
        "ftype": file.get("weights"),
    }
    return {name: value for name, value in found.items() if value is not None}


async def list_models(context: RequestContext[None]) -> Reply:
    """List every model once, under its first alias if it has one, together with its other names."""
    service = context.service
    data = []
    for known in await service.library.rescan():
        name = service.names_of(known)[0]
        data += [await model_object(context, name), *_adapter_objects(context, known, name)]
    return Reply.json({"object": "list", "data": data})


def _adapter_objects(context: RequestContext[None], known: str, name: str) -> list[dict[str, Any]]:
    """Return the adapters of a loaded model as vLLM's server shows them."""
    engine = context.service.engines().get(known)
    if engine is None or engine.state is not EngineState.READY:
        return []
    info, shown = engine.info, {"object": "model", "created": context.service.created, "owned_by": "quire"}
    return [
        {"id": lora, **shown, "root": path, "parent": name}
        for lora, (path, _) in zip(info.loras, info.adapters, strict=False)
    ]


async def show_model(context: RequestContext[None]) -> Reply:
    """Show one model."""
    service, name = context.service, context.path("model")
    if name not in service.names and service.adapter_of(name) is not None:
        known = service.exactly(name)
        found = _adapter_objects(context, known, service.names_of(known)[0])
        return Reply.json(next(each for each in found if each["id"] == name))
    if name not in service.names:
        raise ApiError(404, "model_not_found", f"no such model: {name!r:.80}", "model")
    return Reply.json(await model_object(context, name))


class ModelBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The model to load or unload."""

    model: Name


async def list_files(context: RequestContext[None]) -> Reply:
    """List all models with the bytes of their files and their state."""
    known = await context.service.library.rescan()
    engines = context.service.engines()
    return Reply.json({"models": [await _row(context, name, size, engines.get(name)) for name, size in known.items()]})


async def list_active(context: RequestContext[None]) -> Reply:
    """List the loaded models."""
    known = context.service.library.known
    engines = context.service.engines()
    return Reply.json(
        {"models": [await _row(context, name, known.get(name, 0), each) for name, each in engines.items()]}
    )


async def _row(context: RequestContext[None], name: str, size: int, engine: EngineClient | None) -> dict[str, Any]:
    n_requests = 0 if engine is None else engine.n_active
    if not size and engine is not None:  # only the worker knows the file of the package's model
        with suppress(ApiError):
            size = (await context.ask(engine, Ask(0, "describe", {})))["file"]["size_bytes"]
    row: dict[str, Any] = {
        "model": name,
        "file_bytes": size or None,
        "state": "closed" if engine is None else engine.state.value,
    }
    if engine is not None:
        beat = engine.beat
        row |= {"requests": n_requests, "resident_bytes": 0 if beat is None else beat.rss_bytes}
    return row


def check_may_close(context: RequestContext[Any], name: str) -> None:
    """Raise ApiError 403 if a loaded model is not the caller's to unload."""
    if name in context.service.engines() and not context.service.may_close(name, context.caller):
        text = f"model {name!r:.80} was not loaded by this key: only a server with --allow-changes unloads it"
        raise ApiError(403, "not_allowed", text, "model")


async def load(context: RequestContext[ModelBody]) -> Reply:
    """Load a model and wait until it is ready."""
    name = context.service.exactly(context.body.model)
    async with context.service.pinned(name, context.caller):
        return Reply.json({"model": name, "state": EngineState.READY.value})


async def unload(context: RequestContext[ModelBody]) -> Reply:
    """Unload an idle model.  If another key loaded it, this needs --allow-changes."""
    name = context.service.exactly(context.body.model)
    check_may_close(context, name)
    await context.service.library.close(name)
    return Reply.json({"model": name, "state": "closed"})


async def reload(context: RequestContext[ModelBody]) -> Reply:
    """Unload an idle model and load its file again."""
    await unload(context)
    return await load(context)
