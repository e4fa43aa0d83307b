"""The front end for event loops: ``AsyncLLM``, with the verbs of ``LLM``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, overload

from ..params.request_fields import read_keywords
from ..params.signatures import show_keywords
from ..params.tool_options import ToolOptions
from ..tools.tool_use import ToolUse
from .controlled import AsyncControls
from .core import chat_call, tool_turn
from .engine import Failure, Pooling
from .forks import forbid_in_children
from .requests.prompts import Prompt, RequestOptions, vector_options
from .requests.results import Delta, GenerationResult
from .requests.texts import Pair, Ranked, TextKind, TextOptions, Truncate
from .requests.transcripts import Sound, SpeechTask, TranscribeOptions, Transcript, speech_sampling
from .running import Call, Running, Stream
from .session_core import History, SessionOptions, Truncation, opened_session
from .sessions import AsyncSession

if TYPE_CHECKING:
    import os

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

    from .._native.engine import Event
    from ..chat import Messages
    from ..params.chat_options import ChatFields, RunFields
    from ..params.request_fields import RequestFields
    from ..params.sampling import AdapterChoice, SamplingParams
    from ..tools.loop import Approve
    from ..tools.toolbox import ToolSource
    from .llm_base import LLMBase
    from .loading.retrieval import Output
    from .requests.chat import ChatDelta, ChatResult
    from .requests.encoded import SparseVector
    from .requests.entities import Aggregation, Entity
    from .requests.tool_turn import RunResult, ToolTurn

__all__ = ["AsyncLLM"]

T = TypeVar("T")
PieceT = TypeVar("PieceT")
_Inbox: TypeAlias = "asyncio.Queue[Sequence[Event | Failure]]"


class AsyncLLM(AsyncControls):
    """``LLM`` for event loops: the same verbs with the same arguments, awaited.  Usable from several loops.

    Opening a model blocks; in a running loop, use ``await asyncio.to_thread(AsyncLLM, ...)``.  Prompts are tokenized
    and templates rendered on other threads.  A consumer that goes away (a cancelled task, a closed generator) cancels
    its requests.
    """

    @classmethod
    def sharing(cls, llm: LLMBase) -> AsyncLLM:
        """Return the awaited verbs of an open model: one engine, one batch and one cache.  Closing one closes both."""
        made = cls.__new__(cls)
        # Holding the other object keeps the model open: it is closed when that is freed.
        made.__dict__.update(llm.__dict__, _shared=llm)
        forbid_in_children(made)
        return made

    # BEGIN verbs (written by ci/make_async_llm.py from llm.py)
    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        hidden_states: Sequence[int] | None = None,
        **fields: Unpack[RequestFields],
    ) -> list[GenerationResult]:
        """Complete one prompt or several in one batch; results are in the order of the prompts."""
        options = RequestOptions(
            salt=salt, priority=priority, key=key, keywords=read_keywords(AsyncLLM.generate, fields)
        )
        return await self._run(lambda: self._generation(prompts, params, options, hidden_states))

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
        """Complete one prompt piece by piece.  Closing the iterator early cancels the request."""
        options = RequestOptions(salt=salt, priority=priority, key=key, keywords=read_keywords(AsyncLLM.stream, fields))
        return self._stream(lambda: self._completion(prompt, params, options))

    @overload
    async def chat(
        self, messages: Messages, params: SamplingParams | None = None, **keywords: Unpack[ChatFields]
    ) -> ChatResult: ...

    @overload
    async def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **keywords: Unpack[ChatFields],
    ) -> list[ChatResult]: ...

    async def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **keywords: Unpack[ChatFields],
    ) -> ChatResult | list[ChatResult]:
        """Answer a conversation, rendered by the model's chat template; or a list of conversations in one batch."""
        options, chat = chat_call(AsyncLLM.chat, keywords)
        return await self._run(lambda: self._chat(messages, params, options, chat))

    def chat_stream(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        **keywords: Unpack[ChatFields],
    ) -> AsyncGenerator[ChatDelta, None]:
        """``chat`` piece by piece.  Closing the iterator early cancels the request."""
        options, chat = chat_call(AsyncLLM.chat_stream, keywords)
        return self._stream(lambda: self._chat_reply(messages, params, options, chat))

    async def run(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[ToolSource],
        approve: Approve | None = None,
        max_rounds: int = 8,
        tool_timeout_s: float = 60.0,
        max_result_chars: int = 32_768,
        **keywords: Unpack[RunFields],
    ) -> RunResult:
        """Answer a conversation, running the tools that the model calls until it has its answer."""
        limits = ToolOptions(max_rounds=max_rounds, timeout_s=tool_timeout_s, max_result_chars=max_result_chars)
        use = ToolUse(tools, approve, limits)
        return await self._run_turn(tool_turn(AsyncLLM.run, messages, params, use, keywords), self.chat)

    async def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits of every position, float32 ``[n_tokens, n_vocab]``: row i scores what follows token i."""
        return await self._run(lambda: self._logits(token_ids))

    async def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Embed one prompt or several: the hidden states from which the logits are computed."""
        options = vector_options(salt, priority, key, adapter)
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        return await self._run(
            lambda: self._embeddings(prompts, pooling, normalize, options, text, dimensions=dimensions)
        )

    @overload
    async def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Literal["dense"] = "dense",
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]: ...

    @overload
    async def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Literal["sparse"],
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[SparseVector]: ...

    @overload
    async def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Literal["multi"],
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]: ...

    async def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        output: Output = "dense",
        kind: TextKind | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32] | list[SparseVector] | list[npt.NDArray[np.float32]]:
        """Return vectors for retrieval, of a kind in ``outputs``."""
        text, given = TextOptions(truncate=truncate, prompt_name=prompt_name, kind=kind), (salt, priority, key, adapter)
        return await self._run(lambda: self._encoded(prompts, output, normalize, vector_options(*given), text))

    async def embed_tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]:
        """Return the vector of every token, one float32 ``[n_tokens, n_hidden]`` for each prompt; see ``embed``."""
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        return await self._run(lambda: self._token_vectors(prompts, vector_options(salt, priority, key, adapter), text))

    async def hidden_states(
        self, prompts: Prompt | Sequence[Prompt], *, layers: Sequence[int]
    ) -> list[npt.NDArray[np.float32]]:
        """Return hidden states after some layers, one float32 ``[n_layers, n_tokens, n]`` for each prompt."""
        return await self._run(lambda: self._hidden_states(prompts, layers))

    async def classify(
        self,
        prompts: Prompt | Sequence[Prompt | Pair],
        *,
        raw_scores: bool = False,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Return the probabilities of the classes in ``labels``, float32 ``[n_prompts, n_classes]``."""
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return await self._run(lambda: self._classification(prompts, raw_scores, options, text))

    async def classify_tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        raw_scores: bool = False,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]:
        """Return the probabilities of every token, one float32 ``[n_tokens, n_classes]`` for each prompt."""
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return await self._run(lambda: self._token_classes(prompts, raw_scores, options, text))

    async def tag(
        self,
        prompts: str | Sequence[str],
        *,
        aggregation: Aggregation = "simple",
        ignored: Sequence[str] = ("O",),
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[list[Entity]]:
        """Find the named entities of one text or several, as transformers' token-classification pipeline does."""
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return await self._run(lambda: self._tags(prompts, aggregation, ignored, options, text))

    async def rerank(
        self,
        query: Ranked,
        documents: Sequence[Ranked],
        *,
        instruction: str | None = None,
        logits: bool = False,
        truncate: Truncate = False,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Return how well each document answers the query, float32 ``[n_documents]`` in the order of the documents."""
        options, text = vector_options(salt, priority, key, adapter), TextOptions(truncate=truncate)
        return await self._run(lambda: self._ranking(query, documents, instruction, options, text, logits=logits))

    async def transcribe(
        self,
        audio: Sound,
        *,
        language: str | None = None,
        prompt: str | None = None,
        task: SpeechTask = "transcribe",
        timestamps: bool = False,
        temperature: float = 0.0,
        max_tokens: int | None = None,
        seed: int | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> Transcript:
        """Return what is said in a recording, with a model that hears."""
        given = speech_sampling(temperature, max_tokens, seed)
        speech = TranscribeOptions(language=language, prompt=prompt, task=task, timestamps=timestamps, sampling=given)
        return await self._run(lambda: self._transcript(audio, speech, vector_options(salt, priority, key, None)))

    # END verbs

    def session(
        self,
        history: History | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        adapter: AdapterChoice | None = None,
        salt: bytes = b"",
        truncation: Truncation = "disabled",
        keep_tokens: int = 0,
    ) -> AsyncSession:
        """Open a session: a text or a chat that each call continues, that can be forked, pinned and saved."""
        options = SessionOptions(
            tools=tools, adapter=adapter, salt=salt, truncation=truncation, keep_tokens=keep_tokens
        )
        return opened_session(AsyncSession, self, options, history, path)

    async def close(self) -> None:
        """Stop and free all memory; answers in progress end as cancelled.  May be called again."""
        await asyncio.to_thread(self._close_engine)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _prepared(self, prepare: Callable[[], T]) -> T:
        """Call ``prepare`` on a thread: the loop's, or with images, which take long, one of the model's own."""
        loop, threads = asyncio.get_running_loop(), self._prompts.media_threads
        return await loop.run_in_executor(threads, copy_context().run, prepare)

    async def _run(self, prepare: Callable[[], Call[T]]) -> T:
        """Prepare a call on a thread, and run its requests until all have ended."""
        call = await self._prepared(prepare)
        inbox, deliver = _inbox()
        requests = call.requests
        with Running[object](self._engine, deliver) as running:
            while requests:
                for request, collector in requests:
                    running.submit(request, collector)
                while running:
                    for _ in running.take(await inbox.get()):
                        pass
                requests = () if call.more is None else await self._prepared(call.more)
        return call.result()

    async def _run_turn(self, turn: ToolTurn, chat: Callable[..., Awaitable[ChatResult]]) -> RunResult:
        """Run a turn with tools; async functions and approval run on the caller's event loop."""
        try:
            await turn.toolbox.open_async()
            turn.loop.check()
            while True:
                last = await chat(turn.loop.messages, turn.params, **turn.keywords, **turn.loop.keywords)
                calls = turn.loop.take(last.message, last.finish_reason)
                if not calls:
                    return turn.result(last)
                await turn.loop.run(calls, await turn.loop.allowed_async(calls))
        finally:
            await turn.toolbox.close_async()

    async def _stream(self, prepare: Callable[[], Stream[PieceT]]) -> AsyncGenerator[PieceT, None]:
        """Yield the pieces of an answer as they come.  The request is prepared on a thread when the first is read."""
        stream = await self._prepared(prepare)
        inbox, deliver = _inbox()
        with Running[PieceT](self._engine, deliver) as running:
            running.submit(stream.request, stream.collector)
            while running:
                for piece in running.take(await inbox.get()):
                    yield piece


def _inbox() -> tuple[_Inbox, Callable[[Sequence[Event | Failure]], None]]:
    """A queue of the running loop, and what fills it from another thread."""
    loop = asyncio.get_running_loop()
    inbox: _Inbox = asyncio.Queue()

    def deliver(items: Sequence[Event | Failure]) -> None:
        loop.call_soon_threadsafe(inbox.put_nowait, items)

    return inbox, deliver


show_keywords(AsyncLLM)
