"""The front end for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from .engine import EngineRequest, Failure
from .front_end import FrontEnd, collector_of
from .prompts import Prompt, RequestOptions
from .results import Collector, Delta, GenerationResult

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.engine import Event
    from ..chat import Messages
    from ..sampling import SamplingParams

__all__ = ["AsyncLLM"]

_Inbox: TypeAlias = "asyncio.Queue[Sequence[Event | Failure]]"


class AsyncLLM(FrontEnd):
    """``LLM`` for event loops: the same verbs with the same options, awaited.  Usable from several loops.

    Opening a model blocks; in a running loop, make it with ``await asyncio.to_thread(AsyncLLM, ...)``.  Texts are
    tokenized and templates rendered on other threads.  A consumer that goes away (a cancelled task, a closed
    generator) cancels its requests.
    """

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[GenerationResult]:
        """Complete one prompt or several; see ``LLM.generate``."""
        options = RequestOptions(salt=salt, priority=priority, key=key)
        return await self._results(await asyncio.to_thread(self._prompts.requests, prompts, params, options))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> AsyncGenerator[Delta, None]:
        """Complete one prompt piece by piece; see ``LLM.stream``."""
        options = RequestOptions(salt=salt, priority=priority, key=key)
        return self._deltas(lambda: self._prompts.request(prompt, params, options))

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_values: Mapping[str, object] | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> GenerationResult:
        """Answer a conversation; see ``LLM.chat``."""
        options = RequestOptions(salt=salt, priority=priority, key=key)
        request = await asyncio.to_thread(
            self._prompts.chat_request, messages, params, options, tools=tools, values=template_values
        )
        return (await self._results([request]))[0]

    def chat_stream(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_values: Mapping[str, object] | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> AsyncGenerator[Delta, None]:
        """``chat`` piece by piece; see ``LLM.chat_stream``."""
        options = RequestOptions(salt=salt, priority=priority, key=key)
        return self._deltas(
            lambda: self._prompts.chat_request(messages, params, options, tools=tools, values=template_values)
        )

    async def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits of every position, float32 ``[n_tokens, n_vocab]``; see ``LLM.logits``."""
        async with aclosing(self._events(self._prompts.logits_request(token_ids))) as events:
            return self._joined_logits([event async for event in events])

    async def close(self) -> None:
        """Stop and give all memory back; answers that are under way end as cancelled.  May be called again."""
        await asyncio.to_thread(self._close_engine)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _results(self, requests: Sequence[EngineRequest]) -> list[GenerationResult]:
        inbox, deliver = _inbox()
        running: dict[int, Collector] = {}
        collectors = []
        try:
            for request in requests:
                collectors.append(collector_of(request))
                running[self._engine.submit(request, deliver)] = collectors[-1]
            while running:
                for item in await inbox.get():
                    if isinstance(item, Failure):
                        del running[item.request_id]
                        raise item.error
                    collector = running[item.request_id]
                    collector.add(item)
                    if collector.complete:
                        del running[item.request_id]
        finally:
            for request_id in running:
                self._engine.cancel(request_id)
        return [collector.result() for collector in collectors]

    async def _deltas(self, prepare: Callable[[], EngineRequest]) -> AsyncGenerator[Delta, None]:
        request = await asyncio.to_thread(prepare)
        collector = collector_of(request)
        async with aclosing(self._events(request)) as events:
            async for event in events:
                yield collector.add(event)

    async def _events(self, request: EngineRequest) -> AsyncGenerator[Event, None]:
        """The events of one request; leaving early cancels it."""
        inbox, deliver = _inbox()
        request_id = self._engine.submit(request, deliver)
        n_unfinished = request.n
        try:
            while n_unfinished:
                for item in await inbox.get():
                    if isinstance(item, Failure):
                        n_unfinished = 0
                        raise item.error
                    n_unfinished -= item.kind == "finish"
                    yield item
        finally:
            if n_unfinished:
                self._engine.cancel(request_id)


def _inbox() -> tuple[_Inbox, Callable[[Sequence[Event | Failure]], None]]:
    """A queue of the running loop, and what fills it from another thread."""
    loop = asyncio.get_running_loop()
    inbox: _Inbox = asyncio.Queue()

    def deliver(items: Sequence[Event | Failure]) -> None:
        loop.call_soon_threadsafe(inbox.put_nowait, items)

    return inbox, deliver
