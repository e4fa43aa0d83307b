"""A model in the listener's own process: for tests, and where a worker process is not wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .engine import EngineState, Stream, Streams
from .failures import ApiError
from .protocol import Beat, Cancel, FromEngine, ModelInfo, Open, Work

if TYPE_CHECKING:
    from .host import Host

__all__ = ["LocalEngine"]


class LocalEngine(Streams):
    """An ``Engine`` without a process of its own."""

    def __init__(self, opened: Open) -> None:
        super().__init__()
        self._opened = opened
        self._host: Host | None = None
        self._info: ModelInfo | None = None
        self._state = EngineState.LOADING

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise ApiError(503, "model_not_loaded", "the model must be loaded but is not yet", retry_after_s=1)
        return self._info

    @property
    def beat(self) -> Beat | None:
        return None if self._host is None else self._host.beat()

    def submit(self, work: Work) -> Stream:
        if self._host is None:
            raise ApiError(503, "model_not_loaded", "the model must be loaded but is not", retry_after_s=1)
        made, stream = self.open(work)
        self._host.handle(made)
        return stream

    def send_cancel(self, id_: int) -> None:
        if self._host is not None:
            self._host.handle(Cancel(id_))

    async def start(self) -> None:
        from .host import Host

        loop = asyncio.get_running_loop()

        def emit(messages: Sequence[FromEngine]) -> None:
            # A loop that was closed has no readers any more.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.dispatch, messages)

        self._host = await asyncio.to_thread(Host, self._opened, emit)
        self._info = self._host.info()
        self._state = EngineState.READY

    async def stop(self) -> None:
        self._state = EngineState.STOPPED
        host, self._host = self._host, None
        if host is not None:
            self.fail_all("Lost", "the server must be running until the answer is complete but stops")
            await asyncio.to_thread(host.close)
