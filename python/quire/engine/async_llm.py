"""The front end for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, overload

from ..errors import RequestError
from ..params.request_fields import asked
from .engine import EngineRequest, Failure, Pooling
from .forks import forbid_in_children
from .llm_base import UNPOOLED, LLMBase, Vectors, collector_of, normalized, stacked
from .requests.prompts import Prompt, RequestOptions
from .requests.results import Collector, Delta, GenerationResult
from .requests.texts import Pair, TextOptions, Truncate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

    from .._native.engine import Event
    from ..chat import Messages
    from ..params.request_fields import RequestFields
    from ..params.sampling import SamplingParams
    from .requests.chat import ChatCollector, ChatDelta, ChatFields, ChatRequest, ChatResult, ToolChoice

__all__ = ["AsyncLLM"]

_Inbox: TypeAlias = "asyncio.Queue[Sequence[Event | Failure]]"


class AsyncLLM(LLMBase):
    """``LLM`` for event loops: the same verbs with the same options, awaited.  Usable from several loops.

    Opening a model blocks; in a running loop, make it with ``await asyncio.to_thread(AsyncLLM, ...)``.  Texts are
    tokenized and templates rendered on other threads.  A consumer that goes away (a cancelled task, a closed
    generator) cancels its requests.
    """

    @classmethod
    def sharing(cls, llm: LLMBase) -> AsyncLLM:
        """The awaited verbs of a model that is open: one engine, one batch and one cache.  Closing one closes both."""
        made = cls.__new__(cls)
        # The model is closed when nobody holds it, so that this one does.
        made.__dict__.update(llm.__dict__, _shared=llm)
        forbid_in_children(made)
        return made

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> list[GenerationResult]:
        """Complete one prompt or several; see ``LLM.generate``."""
        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(AsyncLLM.generate, fields))
        return await self._results(await asyncio.to_thread(self._prompts.requests, prompts, params, options))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[Delta, None]:
        """Complete one prompt piece by piece; see ``LLM.stream``."""
        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(AsyncLLM.stream, fields))
        return self._deltas(lambda: self._prompts.request(prompt, params, options))

    @overload
    async def chat(
        self, messages: Messages, params: SamplingParams | None = None, **options: Unpack[ChatFields]
    ) -> ChatResult: ...
    @overload
    async def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[ChatFields],
    ) -> list[ChatResult]: ...
    async def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str = "auto",
        reasoning_format: str = "auto",
        reasoning_budget: int | None = None,
        template_values: Mapping[str, object] | None = None,
        continue_final_message: bool = False,
        max_prompt_tokens: int | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> ChatResult | list[ChatResult]:
        """Answer a conversation; see ``LLM.chat``."""
        from .requests.chat import ChatCollector, ChatOptions, conversations

        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(AsyncLLM.chat, fields))
        chat = ChatOptions(
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            reasoning_format=reasoning_format,
            reasoning_budget=reasoning_budget,
            template_values=template_values,
            continue_final_message=continue_final_message,
            max_prompt_tokens=max_prompt_tokens,
        )
        all_messages, several = conversations(messages)
        requests = await asyncio.to_thread(self._prompts.chat_requests, all_messages, params, options, chat)
        collectors = [ChatCollector(request, collector_of(request.engine)) for request in requests]
        await self._collect([(r.engine, c) for r, c in zip(requests, collectors, strict=True)])
        results = [collector.result() for collector in collectors]
        return results if several else results[0]

    def chat_stream(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str = "auto",
        reasoning_format: str = "auto",
        reasoning_budget: int | None = None,
        template_values: Mapping[str, object] | None = None,
        continue_final_message: bool = False,
        max_prompt_tokens: int | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> AsyncGenerator[ChatDelta, None]:
        """``chat`` piece by piece; see ``LLM.chat_stream``."""
        from .requests.chat import ChatOptions

        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(AsyncLLM.chat_stream, fields))
        chat = ChatOptions(
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            reasoning_format=reasoning_format,
            reasoning_budget=reasoning_budget,
            template_values=template_values,
            continue_final_message=continue_final_message,
            max_prompt_tokens=max_prompt_tokens,
        )
        return self._chat_deltas(lambda: self._prompts.chat_request(messages, params, options, chat))

    async def _chat_deltas(self, prepare: Callable[[], ChatRequest]) -> AsyncGenerator[ChatDelta, None]:
        from .requests.chat import ChatCollector

        request = await asyncio.to_thread(prepare)
        collector = ChatCollector(request, collector_of(request.engine))
        async with aclosing(self._events(request.engine)) as events:
            async for event in events:
                yield collector.add(event)

    async def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits of every position, float32 ``[n_tokens, n_vocab]``; see ``LLM.logits``."""
        async with aclosing(self._events(self._prompts.logits_request(token_ids))) as events:
            return self._joined_logits([event async for event in events])

    async def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Embed one prompt or several: float32 ``[n_prompts, n_hidden]``; see ``LLM.embed``."""
        options = RequestOptions(salt=salt, priority=priority, key=key)
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        if pooling == "none":
            raise RequestError(UNPOOLED)
        requests = await asyncio.to_thread(self._embedding_requests, prompts, pooling, options, text)
        result = stacked(await self._vectors(requests), "embed")
        return normalized(result) if normalize else result

    async def embed_tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]:
        """The vectors of every token, one float32 ``[n_tokens, n_hidden]`` for each prompt; see ``embed``."""
        options = RequestOptions(salt=salt, priority=priority, key=key)
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        requests = await asyncio.to_thread(self._embedding_requests, prompts, "none", options, text)
        return [item.vector for item in await self._vectors(requests) if item.vector is not None]

    async def hidden_states(
        self, prompts: Prompt | Sequence[Prompt], *, layers: Sequence[int]
    ) -> list[npt.NDArray[np.float32]]:
        """What layers leave of every token, one float32 ``[n_layers, n_tokens, n]`` for each prompt; see ``LLM``."""
        requests = await asyncio.to_thread(self._taps_requests, prompts, layers)
        return self._tapped(await self._vectors(requests), layers)

    async def classify(
        self,
        prompts: Prompt | Sequence[Prompt | Pair],
        *,
        raw_scores: bool = False,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Probabilities of the classes in ``labels``: float32 ``[n_prompts, n_classes]``; see ``LLM.classify``."""
        options, text = RequestOptions(salt=salt, priority=priority, key=key), TextOptions(truncate=truncate)
        requests = await asyncio.to_thread(self._class_requests, prompts, options, text)
        return self._classes(stacked(await self._vectors(requests), "classify"), raw_scores=raw_scores)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """How well each document answers the query: float32 ``[n_documents]``; see ``LLM.rerank``."""
        options, text = RequestOptions(salt=salt, priority=priority, key=key), TextOptions(truncate=truncate)
        requests = await asyncio.to_thread(self._pair_requests, query, documents, instruction, options, text)
        return self._relevance(stacked(await self._vectors(requests), "rerank"))

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
        collectors = [collector_of(request) for request in requests]
        await self._collect(list(zip(requests, collectors, strict=True)))
        return [collector.result() for collector in collectors]

    async def _vectors(self, requests: Sequence[EngineRequest]) -> list[Vectors]:
        """What requests to embed give."""
        vectors = [Vectors() for _ in requests]
        await self._collect(list(zip(requests, vectors, strict=True)))
        return vectors

    async def _collect(self, requests: Sequence[tuple[EngineRequest, Collector | ChatCollector | Vectors]]) -> None:
        """Run requests until all are complete."""
        inbox, deliver = _inbox()
        running: dict[int, Collector | ChatCollector | Vectors] = {}
        try:
            for request, collector in requests:
                running[self._engine.submit(request, deliver)] = collector
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
