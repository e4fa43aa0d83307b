"""Routes to download, delete and name models, as in Ollama and llama-server; off unless --allow-changes is given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from ...errors import LoadError, QuireError, RequestError
from ...hub.locate import is_named, preset_of, repository_of
from ...hub.names import HubName
from ...hub.registry import Preset, Registry
from ...hub.remove import remove_stored
from ...hub.stores import find_stored, stored_models
from ..body_types import Body
from ..failures import ApiError, Dialect, brief, error_body
from ..listener import sse
from ..listener.replies import Events, Reply
from ..listener.request_context import RequestContext
from ..service.downloads import Download, Downloads, DownloadStep, described
from .fields import Name
from .presets import CreateBody, preset_of_body

__all__ = [
    "CopyBody", "CreateBody", "DeleteBody", "FetchBody", "PullBody", "copy", "create", "delete", "events", "fetch",
    "forget", "pull",
]  # fmt: skip

_LINES = b"application/x-ndjson"
_PING_S = 15.0
_registry_lock = threading.Lock()  # held while the registry is read, changed and written


class PullBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The model to download; older clients send ``name``."""

    model: Name | None = None
    name: Name | None = None
    stream: bool = True
    refused: ClassVar[dict[str, tuple[object, ...]]] = {"insecure": (False,), "username": ("",), "password": ("",)}


class DeleteBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The model to delete; older clients send ``name``."""

    model: Name | None = None
    name: Name | None = None


class CopyBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A model, and another name for it."""

    source: Name
    destination: Name


class FetchBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The model to download."""

    model: Name


def _check_allowed(context: RequestContext[Any]) -> Downloads:
    """Raise ApiError 403 if the server's models must not be changed."""
    if not context.service.settings.allow_changes:
        text = "changing models is off: start the server with --allow-changes"
        raise ApiError(403, "not_allowed", text)
    return context.service.downloads


def _named(body: PullBody | DeleteBody | CreateBody) -> str:
    name = body.model or body.name
    if name is None:
        raise ApiError(400, "invalid_value", "model is required", "model")
    return name


def _repository(name: str) -> HubName:
    preset = preset_of(name)
    wanted = repository_of(name if preset is None else preset.model)
    if wanted is None:
        text = f"unknown model {brief(name)}: expected org/name, org/name:QUANT or a short name"
        raise ApiError(400, "invalid_value", text, "model")
    return wanted


def _begun(downloads: Downloads, name: str) -> Download:
    wanted = _repository(name)
    if downloads.full:
        raise ApiError(429, "too_many_downloads", "too many downloads at the same time", retry_after_s=30)
    return downloads.start(wanted)


async def pull(context: RequestContext[PullBody]) -> Reply | Events:
    """Download a model; lines report its progress."""
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
    """Delete a name from the registry, or a model from the hub's cache."""
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
    with _registry_lock:
        registry = Registry()
        if registry.remove(name) or registry.remove(name.removesuffix(":latest")):
            return
    models, wanted = stored_models(), repository_of(name)
    found = find_stored(name, models) or (None if wanted is None else find_stored(wanted, models))
    if found is None:
        raise ApiError(404, "model_not_found", f"no such model on this machine: {brief(name)}", "model")
    try:
        remove_stored(found)
    except QuireError as error:
        raise ApiError(400, "not_supported", str(error), "model") from None


async def copy(context: RequestContext[CopyBody]) -> Reply:
    """Give a model another name."""
    _check_allowed(context)
    body = context.body
    model = await _resolved(context, body.source)
    if model is None or (model.startswith("hf://") and not await asyncio.to_thread(_is_stored, body.source)):
        raise ApiError(404, "model_not_found", f"no such model: {brief(body.source)}", "source")
    await _keep(context, body.destination, Preset(model))
    return Reply(b"")


async def create(context: RequestContext[CreateBody]) -> Reply | Events:
    """Create a named model, with parameters and a system message of its own."""
    _check_allowed(context)
    name = _named(context.body)
    preset = await context.prepared(preset_of_body, context.body, context.service.settings.models_dir)
    model = await _resolved(context, preset.model)
    if model is None:
        raise ApiError(400, "invalid_value", f"no such model: {brief(preset.model)}", "from")
    await _keep(context, name, replace(preset, model=model))
    done = {"status": "success"}
    return Reply(sse.line(done), media_type=_LINES) if context.body.stream else Reply.json(done)


def _is_stored(name: str) -> bool:
    wanted = repository_of(name)
    return wanted is not None and find_stored(wanted) is not None


async def _resolved(context: RequestContext[Any], given: str) -> str | None:
    """The registry's reference for a model that a client names; None if there is no such model.

    Only names are accepted, from this server's list or a hub: with paths, clients could have any file served.
    """
    service, name = context.service, given.removesuffix(":latest")
    if name in await service.library.rescan():
        path = service.own_files(name)
        if path is not None:
            return str(path.absolute())
        if await asyncio.to_thread(is_named, name):
            return name
    wanted = repository_of(given)
    if wanted is None:
        return None
    if wanted.file is None and wanted.revision is None:
        return f"hf://{wanted}"
    return given if "://" in given else f"https://{given}"


async def _keep(context: RequestContext[Any], name: str, preset: Preset) -> None:
    """Store a preset, and unload a model that was loaded under its old definition."""
    service, name = context.service, name.removesuffix(":latest")
    if service.own_files(name) is not None:
        text = f"the name {brief(name)} belongs to a model file on this server: choose another one"
        raise ApiError(409, "name_taken", text, "model")
    await asyncio.to_thread(_add, name, preset)
    await service.library.rescan(force=True)
    if name in service.engines():
        with suppress(ApiError):  # it is busy: the new definition applies when it is loaded again
            await service.library.close(name)


def _add(name: str, preset: Preset) -> None:
    try:
        with _registry_lock:
            Registry().add(name, preset)
    except RequestError as error:
        raise ApiError(400, "invalid_value", str(error), "model") from None


# llama-server's routes


async def fetch(context: RequestContext[FetchBody]) -> Reply:
    """Start to download a model; ``/models/sse`` reports its progress."""
    _begun(_check_allowed(context), context.body.model)
    return Reply.json({"success": True})


async def forget(context: RequestContext[None]) -> Reply:
    """Delete the model named in the query."""
    downloads = _check_allowed(context)
    names = context.query().get("model")
    if not names:
        raise ApiError(400, "invalid_value", "the query names no model", "model")
    downloads.cancel(names[0])
    await _delete(context, names[0])
    return Reply.json({"success": True})


async def events(context: RequestContext[None]) -> Events:
    """Stream the progress of downloads, without end."""
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
