"""Routes that fetch, delete and name models, by Ollama's and llama-server's interfaces; off unless they are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import parse_qs

from msgspec import Meta

from ...errors import LoadError, QuireError, RequestError
from ...hub.locate import preset_of, repository_of
from ...hub.names import HubName
from ...hub.registry import Preset, Registry
from ...hub.remove import remove_stored
from ...hub.stores import find_stored, stored_models
from ...sampling import SamplingParams
from ..body_types import Body
from ..failures import ApiError, Dialect, brief, error_body
from ..listener import sse
from ..listener.replies import Events, Reply
from ..listener.request_context import RequestContext
from ..service.downloads import Download, Downloads, DownloadStep, described
from .fields import Name, Text
from .modelfile import read_modelfile

__all__ = [
    "CopyBody", "CreateBody", "DeleteBody", "FetchBody", "PullBody", "copy", "create", "delete", "events", "fetch",
    "forget", "pull",
]  # fmt: skip

_LINES = b"application/x-ndjson"
_PING_S = 15.0
# Ollama's names of parameters, with ours; those of the engine with the command line's.
_SAMPLING = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", "num_predict": "max_tokens", "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau", "mirostat_eta": "mirostat_eta", "stop": "stop", "seed": "seed",
}  # fmt: skip
_ENGINE = {"num_ctx": "ctx-size", "num_thread": "threads", "num_batch": "batch-size"}


class PullBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Which model; older clients say ``name``."""

    model: Name | None = None
    name: Name | None = None
    stream: bool = True
    refused: ClassVar[dict[str, tuple[object, ...]]] = {"insecure": (False,), "username": ("",), "password": ("",)}


class DeleteBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Which model; older clients say ``name``."""

    model: Name | None = None
    name: Name | None = None


class CopyBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A model, and its further name."""

    source: Name
    destination: Name


class CreateBody(Body, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A name for a model with parameters and a system message: as fields, or as the text of a Modelfile."""

    model: Name | None = None
    name: Name | None = None
    from_: Annotated[str, Meta(max_length=1024)] | None = None
    system: Text | None = None
    parameters: dict[str, Any] = {}
    modelfile: Text | None = None
    stream: bool = True
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "template": ("",), "adapters": ({},), "files": ({},), "messages": ([],), "quantize": ("",), "license": ("",),
    }  # fmt: skip


class FetchBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Which model."""

    model: Name


def _check_allowed(context: RequestContext[Any]) -> Downloads:
    """ApiError 403 where the server's models are not to be changed."""
    if not context.service.settings.allow_changes:
        text = "models are fetched, named and deleted only where the server is started with --allow-changes"
        raise ApiError(403, "not_allowed", text)
    return context.service.downloads


def _named(body: PullBody | DeleteBody | CreateBody) -> str:
    name = body.model or body.name
    if name is None:
        raise ApiError(400, "invalid_value", "model must be given but is absent", "model")
    return name


def _repository(name: str) -> HubName:
    preset = preset_of(name)
    wanted = repository_of(name if preset is None else preset.model)
    if wanted is None:
        text = f"model must be org/name, org/name:QUANT or a short name but is {brief(name)}"
        raise ApiError(400, "invalid_value", text, "model")
    return wanted


def _begun(downloads: Downloads, name: str) -> Download:
    wanted = _repository(name)
    if downloads.full:
        raise ApiError(429, "too_many_downloads", "fewer models must be fetched at a time", retry_after_s=30)
    return downloads.start(wanted)


async def pull(context: RequestContext[PullBody]) -> Reply | Events:
    """Fetch a model; lines tell how far it is."""
    downloads = _check_allowed(context)
    download = _begun(downloads, _named(context.body))
    if context.body.stream:
        return Events(
            _pull_lines(context, downloads, download), lambda error: sse.line(error_body(error, Dialect.OLLAMA)), _LINES
        )
    async for step in downloads.steps(download):
        _raise(step)
    await context.service.library.rescan(force=True)
    return Reply.json({"status": "success"})


async def _pull_lines(
    context: RequestContext[PullBody], downloads: Downloads, download: Download
) -> AsyncIterator[bytes]:
    yield sse.line({"status": "pulling manifest"})
    async for step in downloads.steps(download):
        _raise(step)
        if not step.finished:
            row = {"status": f"pulling {step.file}", "digest": step.file, "total": step.total, "completed": step.done}
            yield sse.line(row)
    await context.service.library.rescan(force=True)
    yield sse.line({"status": "success"})


def _raise(step: DownloadStep) -> None:
    if step.error is not None:
        raise ApiError(404 if isinstance(step.error, LoadError) else 500, "not_fetched", str(step.error), "model")


async def delete(context: RequestContext[DeleteBody]) -> Reply:
    """Delete a name of the registry, or a model of the hub's cache."""
    _check_allowed(context)
    await _delete(context, _named(context.body))
    return Reply(b"")


async def _delete(context: RequestContext[Any], name: str) -> None:
    library = context.service.library
    if name.removesuffix(":latest") in library.engines():
        await library.close(name.removesuffix(":latest"))
    await asyncio.to_thread(_forget, name)
    await library.rescan(force=True)


def _forget(name: str) -> None:
    registry = Registry()
    if registry.remove(name) or registry.remove(name.removesuffix(":latest")):
        return
    models, wanted = stored_models(), repository_of(name)
    found = find_stored(name, models) or (None if wanted is None else find_stored(wanted, models))
    if found is None:
        raise ApiError(404, "model_not_found", f"the model must be on this machine but {brief(name)} is not", "model")
    try:
        remove_stored(found)
    except QuireError as error:
        raise ApiError(400, "not_supported", str(error), "model") from None


async def copy(context: RequestContext[CopyBody]) -> Reply:
    """Give a model a further name."""
    _check_allowed(context)
    body, library = context.body, context.service.library
    if (await library.rescan()).get(body.source.removesuffix(":latest")) is None and repository_of(body.source) is None:
        text = f"source must be a model that there is but is {brief(body.source)}"
        raise ApiError(404, "model_not_found", text, "source")
    await asyncio.to_thread(_add, body.destination, Preset(body.source.removesuffix(":latest")))
    await library.rescan(force=True)
    return Reply(b"")


def _add(name: str, preset: Preset) -> None:
    try:
        Registry().add(name.removesuffix(":latest"), preset)
    except RequestError as error:
        raise ApiError(400, "invalid_value", str(error), "model") from None


async def create(context: RequestContext[CreateBody]) -> Reply | Events:
    """Name a model, with parameters and a system message of its own."""
    _check_allowed(context)
    name, preset = _named(context.body), _preset_of(context.body, context.service.settings.models_dir)
    if preset.model.removesuffix(":latest") not in await context.service.library.rescan() and not repository_of(
        preset.model
    ):
        text = f"from must be a model that there is but is {brief(preset.model)}"
        raise ApiError(400, "invalid_value", text, "from")
    await asyncio.to_thread(_add, name, preset)
    await context.service.library.rescan(force=True)
    done = {"status": "success"}
    return Reply(sse.line(done), media_type=_LINES) if context.body.stream else Reply.json(done)


def _adapter_in(folder: str | None, name: str) -> str:
    """The path of an adapter beside the models, a file or a folder of PEFT: clients must not name other ones of the
    machine."""
    home = None if folder is None else Path(folder).resolve()
    path = None if home is None else home / name
    is_name = 0 < len(name.encode()) < 256 and Path(name).name == name  # a longer one is an error of the system
    if home is None or path is None or not is_name or not _is_adapter(path) or path.resolve().parent != home:
        text = f"an ADAPTER must be a file beside the models, or a folder of PEFT, but is {brief(name)}"
        raise ApiError(400, "invalid_value", text, "modelfile")
    return str(path)


def _is_adapter(path: Path) -> bool:
    return path.is_file() or (path / "adapter_config.json").is_file()


def _preset_of(body: CreateBody, folder: str | None) -> Preset:
    """What a body says; ApiError naming what of it there is not."""
    given: list[tuple[str, Any]] = list(body.parameters.items())
    model, system, adapters = body.from_, body.system, list[str]()
    if body.modelfile is not None:
        read = read_modelfile(body.modelfile)
        model, system, adapters = read.model, read.system, read.adapters
        given += read.parameters
    if model is None:
        raise ApiError(400, "invalid_value", "from must name a model but is absent", "from")
    sampling: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if adapters:
        options["lora"] = [_adapter_in(folder, name) for name in adapters]
    for key, value in given:
        if key == "stop":
            sampling["stop"] = [*sampling.get("stop", []), *(value if isinstance(value, list) else [value])]
        elif key in _SAMPLING:
            sampling[_SAMPLING[key]] = value
        elif key in _ENGINE:
            options[_ENGINE[key]] = value
        else:
            text = f"parameters must be known ones but one is {brief(key)}"
            raise ApiError(400, "unsupported_parameter", text, "parameters")
    for key in ("max_tokens", "seed"):
        if isinstance(sampling.get(key), int) and sampling[key] < 0:
            del sampling[key]
    try:
        SamplingParams(**sampling)
    except RequestError as error:
        raise ApiError(400, "invalid_value", str(error), "parameters") from None
    return Preset(model, system, options, sampling)


# llama-server's


async def fetch(context: RequestContext[FetchBody]) -> Reply:
    """Begin to fetch a model; ``/models/sse`` tells how far it is."""
    _begun(_check_allowed(context), context.body.model)
    return Reply.json({"success": True})


async def forget(context: RequestContext[None]) -> Reply:
    """Delete the model that the query names."""
    downloads = _check_allowed(context)
    names = parse_qs(bytes(context.scope["query_string"]).decode("ascii", "replace")).get("model")
    if not names:
        raise ApiError(400, "invalid_value", "the query must name a model but does not", "model")
    downloads.cancel(names[0])
    await _delete(context, names[0])
    return Reply.json({"success": True})


async def events(context: RequestContext[None]) -> Events:
    """How far models are that are being fetched, without end."""
    downloads = _check_allowed(context)
    return Events(_event_lines(context, downloads), lambda error: sse.event(error_body(error, Dialect.OPENAI)))


async def _event_lines(context: RequestContext[None], downloads: Downloads) -> AsyncIterator[bytes]:
    yield sse.PING
    steps = downloads.all_steps()
    waiting: asyncio.Future[DownloadStep] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(steps))
            done, _ = await asyncio.wait({waiting}, timeout=_PING_S)
            if not done:
                yield sse.PING
                continue
            step, waiting = waiting.result(), None
            yield sse.event(described(step))
            if step.finished and step.error is None:
                await context.service.library.rescan(force=True)
                yield sse.event({"model": "*", "event": "models_reload"})
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait({waiting})
        await steps.aclose()
