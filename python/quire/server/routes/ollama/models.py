"""Ollama's routes about models, including those that Quire does not support."""

from __future__ import annotations

import time
from typing import Any

from ...failures import ApiError
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...worker.engine_client import EngineClient, EngineState
from ...worker.protocol import Ask, ModelInfo
from .answers import moment
from .fields import ModelBody, name_of

__all__ = ["absent", "blob", "ps", "show", "tags", "version"]

# Clients reject versions older than the routes that they use.
_SPOKEN = "0.13.0"
# Ollama's expiry time of a model that is never unloaded.
_NEVER = "2318-01-01T00:00:00Z"


async def tags(context: RequestContext[None]) -> Reply:
    """List all models."""
    known = await context.service.library.rescan()
    ready = dict(_ready(context))
    rows = []
    for name, size in known.items():
        if name in ready:
            rows.append(await _row(context, name, ready[name]))
        else:  # the file's details are read only when the model is loaded
            rows.append(
                {"name": f"{name}:latest", "model": f"{name}:latest", "size": size, "digest": "", "details": {}}
            )
    return Reply.json({"models": rows})


async def ps(context: RequestContext[None]) -> Reply:
    """List the loaded models."""
    rows = []
    for name, engine in _ready(context):
        row = await _row(context, name, engine)
        beat = engine.beat
        size = row["size"] if beat is None else max(beat.rss_bytes, row["size"])
        stays_s = context.service.library.stays_s(name)
        expires = _NEVER if stays_s is None else moment(time.time() + stays_s)
        more = {"size": size, "size_vram": 0, "expires_at": expires, "context_length": engine.info.n_ctx}
        rows.append({**row, **more})
    return Reply.json({"models": rows})


async def show(context: RequestContext[ModelBody]) -> Reply:
    """Show a model."""
    body = context.body
    name = body.model or body.name
    if name is None:
        raise ApiError(400, "invalid_value", "model is required", "model")
    if body.verbose:
        raise ApiError(400, "unsupported_parameter", "verbose is not supported: leave it out", "verbose")
    async with context.service.pinned(context.service.exactly(name_of(name)), context.caller) as engine:
        described = await context.ask(engine, Ask(0, "describe", {}))
        info, file = engine.info, described["file"]
    keys = {key: value for key, value in file.get("keys", {}).items() if isinstance(key, str)}
    if "n_parameters" in file:
        keys["general.parameter_count"] = file["n_parameters"]
    return Reply.json(
        {
            "license": str(keys.get("general.license", "")),
            "modelfile": "",
            "parameters": "\n".join(f"{key} {value}" for key, value in _ollama_names(info.advised)),
            "template": info.chat_template or "",
            "details": _details(engine, described),
            "model_info": keys,
            "capabilities": _capabilities(info, described),
            "modified_at": moment(file["modified_s"]),
        }
    )


async def version(context: RequestContext[None]) -> Reply:
    """Return the version of Ollama whose API this is, which clients check, and the server's own."""
    return Reply.json({"version": _SPOKEN, "quire": context.service.version})


async def absent(context: RequestContext[None]) -> Reply:
    """Reject the request: models are files given to the server when it starts."""
    raise ApiError(501, "not_supported", "this server does not support uploading models")


async def blob(context: RequestContext[None]) -> Reply:
    """Answer that a blob does not exist: models are not created from uploaded parts."""
    raise ApiError(404, "no_such_blob", "no such blob: this server stores none")


def _ready(context: RequestContext[Any]) -> list[tuple[str, EngineClient]]:
    engines = context.service.engines()
    return [(name, engine) for name, engine in engines.items() if engine.state is EngineState.READY]


async def _row(context: RequestContext[Any], name: str, engine: EngineClient) -> dict[str, Any]:
    described = await context.ask(engine, Ask(0, "describe", {}))
    file = described["file"]
    return {
        "name": f"{name}:latest",
        "model": f"{name}:latest",
        "modified_at": moment(file["modified_s"]),
        "size": file["size_bytes"],
        "digest": file.get("digest", ""),
        "details": _details(engine, described),
        "capabilities": _capabilities(engine.info, described),
    }


def _capabilities(info: ModelInfo, described: dict[str, Any]) -> list[str]:
    media = [name for kind, name in (("image", "vision"), ("audio", "audio")) if kind in info.media]
    return ["completion", *described["abilities"], *media]


def _details(engine: EngineClient, described: dict[str, Any]) -> dict[str, Any]:
    info, file = engine.info, described["file"]
    return {
        "parent_model": "",
        "format": "gguf" if "digest" in file else "safetensors",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": _rounded(file.get("n_parameters", 0)),
        "quantization_level": file.get("weights", "").upper(),
        "context_length": info.n_ctx,
        "embedding_length": file.get("keys", {}).get(f"{info.architecture}.embedding_length", 0),
    }


def _rounded(n: int) -> str:
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= unit:
            return f"{n / unit:.1f}{letter}"
    return str(n)


def _ollama_names(advised: dict[str, Any]) -> list[tuple[str, Any]]:
    names = {"repetition_penalty": "repeat_penalty", "penalty_last_n": "repeat_last_n"}
    return [(names.get(key, key), value) for key, value in sorted(advised.items())]
