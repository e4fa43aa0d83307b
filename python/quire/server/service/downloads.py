"""Downloads of models by a running server, and their progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import QuireError
from ...hub.names import HubName

__all__ = ["Download", "DownloadStep", "Downloads", "described", "fetched"]

_MOST_DOWNLOADS, _MOST_WAITING = 4, 256
Fetch = Callable[[HubName, "Callable[[int, int, str], None]"], Path]


@dataclass(frozen=True)
class DownloadStep:
    """Progress of a model: ``done`` of ``total`` bytes of a file.  ``finished`` without ``error`` means success."""

    model: str
    file: str = ""
    done: int = 0
    total: int = 0
    finished: bool = False
    error: QuireError | None = None


@dataclass
class Download:
    """A model being downloaded."""

    model: str
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    last: DownloadStep | None = None
    queues: list[asyncio.Queue[DownloadStep]] = field(default_factory=list)


class _Cancelled(Exception):
    """Raised in the download to stop it."""


class Downloads:
    """Downloads models, each only once at a time.  ``fetch`` blocks, so it runs on a thread."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._running: dict[str, Download] = {}
        self._listeners: list[asyncio.Queue[DownloadStep]] = []

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def full(self) -> bool:
        """True if no further download may start now."""
        return len(self._running) >= _MOST_DOWNLOADS

    def start(self, name: HubName) -> Download:
        """Start to download a model, or join the download in progress."""
        model = str(name)
        download = self._running.get(model)
        if download is None:
            download = self._running[model] = Download(model)
            download.task = asyncio.ensure_future(self._run(name, download))
        return download

    def cancel(self, model: str) -> bool:
        """Stop a download, keeping the partial files for the next time.  False if the model is not being downloaded."""
        download = self._running.get(model)
        if download is None:
            return False
        download.cancelled = True
        return True

    async def steps(self, download: Download) -> AsyncIterator[DownloadStep]:
        """Yield the steps of a download until its end."""
        queue: asyncio.Queue[DownloadStep] = asyncio.Queue(_MOST_WAITING)
        download.queues.append(queue)
        if download.last is not None:
            queue.put_nowait(download.last)
        try:
            while True:
                step = await queue.get()
                yield step
                if step.finished:
                    return
        finally:
            download.queues.remove(queue)

    async def all_steps(self) -> AsyncGenerator[DownloadStep, None]:
        """Yield the steps of all downloads, without end."""
        queue: asyncio.Queue[DownloadStep] = asyncio.Queue(_MOST_WAITING)
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    async def stop(self) -> None:
        """Stop all downloads."""
        tasks = [each.task for each in self._running.values() if each.task is not None]
        for download in self._running.values():
            download.cancelled = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, name: HubName, download: Download) -> None:
        loop = asyncio.get_running_loop()

        def progress(done: int, total: int, file: str) -> None:
            if download.cancelled:
                raise _Cancelled
            loop.call_soon_threadsafe(self._tell, download, DownloadStep(download.model, file, done, total))

        error: QuireError | None = None
        try:
            await asyncio.to_thread(partial(self._fetch, name, progress))
        except _Cancelled:
            error = QuireError(f"[hub] the download of {download.model} was cancelled")
        except QuireError as failed:
            error = failed
        finally:
            self._running.pop(download.model, None)
        self._tell(download, DownloadStep(download.model, finished=True, error=error))

    def _tell(self, download: Download, step: DownloadStep) -> None:
        download.last = step
        for queue in (*download.queues, *self._listeners):
            while queue.full():  # a slow reader only gets the newest steps
                queue.get_nowait()
            queue.put_nowait(step)


def fetched(name: HubName, progress: Callable[[int, int, str], None]) -> Path:
    """Download a model, regardless of the machine's memory."""
    from ...hub.download import fetch

    return fetch(name, None, progress)[0]


def described(step: DownloadStep) -> dict[str, Any]:
    """Return a step in the format of llama-server's events."""
    if not step.finished:
        data: dict[str, Any] = {step.file: {"done": step.done, "total": step.total}}
        return {"model": step.model, "event": "download_progress", "data": data}
    if step.error is not None:
        return {"model": step.model, "event": "download_failed", "data": {"error": str(step.error)}}
    return {"model": step.model, "event": "download_finished", "data": {}}
