"""``Session`` and ``AsyncSession``: conversations and texts that several calls continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from ..params.request_fields import read_keywords
from .blocking import BlockingCore
from .requests.prompts import RequestOptions
from .session_core import History, Message, SessionCore, SessionOptions, Text, Truncation, opened_session

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from ..params.chat_options import ChatFields
    from ..params.request_fields import RequestFields
    from ..params.sampling import AdapterChoice, SamplingParams
    from .requests.chat import ChatDelta, ChatResult
    from .requests.results import Delta, GenerationResult

__all__ = ["AsyncSession", "Session", "SessionsCore"]


@dataclass(eq=False)
class Session(SessionCore):
    """A text or a chat that each call continues; ``LLM.session`` opens one.

    A call adds its prompt and its answer to the history, or nothing if it fails.  Answers equal those to a fresh
    request with the whole history.  Use a session from one thread at a time.
    """

    @property
    def _llm(self) -> BlockingCore:
        return cast("BlockingCore", self.llm)

    def generate(
        self, prompt: Text | None = None, params: SamplingParams | None = None, **fields: Unpack[RequestFields]
    ) -> GenerationResult:
        """Continue the text after ``prompt``, which is raw text or token ids."""
        options = RequestOptions(keywords=read_keywords(Session.generate, fields))
        with self._turn():
            result = self._llm._run(lambda: self._generate_call(prompt, params, options))
            self._renew_pin()
        return result

    def stream(
        self, prompt: Text | None = None, params: SamplingParams | None = None, **fields: Unpack[RequestFields]
    ) -> Generator[Delta, None, None]:
        """``generate`` piece by piece.  If the iterator is closed early, nothing is added."""
        options = RequestOptions(keywords=read_keywords(Session.stream, fields))
        with self._turn():
            yield from self._llm._stream(lambda: self._generate_stream(prompt, params, options))
            self._renew_pin()

    def chat(
        self, message: Message = (), params: SamplingParams | None = None, **keywords: Unpack[ChatFields]
    ) -> ChatResult:
        """Answer the conversation after a user's text, a message, or several.  Keywords as for ``LLM.chat``."""
        with self._turn():
            result = self._llm._run(lambda: self._chat_turn_call(Session.chat, message, params, keywords))
            self._renew_pin()
        return result

    def chat_stream(
        self, message: Message = (), params: SamplingParams | None = None, **keywords: Unpack[ChatFields]
    ) -> Generator[ChatDelta, None, None]:
        """``chat`` piece by piece.  If the iterator is closed early, nothing is added."""
        with self._turn():
            yield from self._llm._stream(lambda: self._chat_turn_stream(Session.chat_stream, message, params, keywords))
            self._renew_pin()

    def pin(self) -> int:
        """Compute the history unless it is cached, and keep it from being evicted; return the number of tokens kept.

        Later turns are kept, too.  Whole blocks of 32 tokens are kept.  All pins may take half of the cache; a pin is
        dropped, the oldest first, if a request could not run otherwise.

        Raises:
            CapacityError: The pins would take more than half of the cache.
        """
        with self._turn():
            return self._keep(self._llm._run(self._prefix_call))

    def fork(self) -> Session:
        """Return a session with the same history, which goes on by itself.  Copies nothing in the cache."""
        made = Session(self.llm, self.options)
        made._copy_of(self)
        return made

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the history to a file, with its blocks in the cache, and return the file's size in bytes.

        ``LLM.session`` opens it again.  Only what follows the last whole block is then computed again.
        """
        from .session_files import save

        with self._turn():
            return save(self.llm._engine, self._saved(), path, self.options.salt)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SessionsCore(BlockingCore):
    """An open model that opens sessions."""

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
    ) -> Session:
        """Open a session: a text or a chat that each call continues, that can be forked, pinned and saved.

        Args:
            history: Messages to begin with, such as a system message.  A string is raw text.
            path: A file of ``Session.save`` to begin with instead.
            tools: Function definitions for all turns of a chat.
            adapter: LoRA adapters of turns that choose none; see ``SamplingParams``.
            salt: Only sessions and requests with the same salt share cached prefixes.
            truncation: ``"auto"`` drops the oldest turns of a chat that does not fit into the context, but no system
                messages; of raw text, the oldest half of the tokens after the first ``keep_tokens``.  ``dropped``
                tells.  ``"disabled"``: too long is an error.

        Raises:
            LoadError: The file cannot be read, is damaged, or has tokens of another vocabulary.
        """
        options = SessionOptions(
            tools=tools, adapter=adapter, salt=salt, truncation=truncation, keep_tokens=keep_tokens
        )
        return opened_session(Session, self, options, history, path)


@dataclass(eq=False)
class AsyncSession(SessionCore):
    """``Session`` for event loops; ``AsyncLLM.session`` opens one."""

    @property
    def _llm(self) -> Any:  # an AsyncLLM, which imports this module
        return self.llm

    async def generate(
        self, prompt: Text | None = None, params: SamplingParams | None = None, **fields: Unpack[RequestFields]
    ) -> GenerationResult:
        """Continue the text after ``prompt``, which is raw text or token ids."""
        options = RequestOptions(keywords=read_keywords(AsyncSession.generate, fields))
        with self._turn():
            result: GenerationResult = await self._llm._run(lambda: self._generate_call(prompt, params, options))
            await self._renew_pin_elsewhere()
        return result

    async def stream(
        self, prompt: Text | None = None, params: SamplingParams | None = None, **fields: Unpack[RequestFields]
    ) -> AsyncGenerator[Delta, None]:
        """``generate`` piece by piece.  If the generator is closed early, nothing is added."""
        options = RequestOptions(keywords=read_keywords(AsyncSession.stream, fields))
        with self._turn():
            async for piece in self._llm._stream(lambda: self._generate_stream(prompt, params, options)):
                yield piece
            await self._renew_pin_elsewhere()

    async def chat(
        self, message: Message = (), params: SamplingParams | None = None, **keywords: Unpack[ChatFields]
    ) -> ChatResult:
        """Answer the conversation after a user's text, a message, or several.  Keywords as for ``LLM.chat``."""
        with self._turn():
            call = partial(self._chat_turn_call, AsyncSession.chat, message, params, keywords)
            result: ChatResult = await self._llm._run(call)
            await self._renew_pin_elsewhere()
        return result

    async def chat_stream(
        self, message: Message = (), params: SamplingParams | None = None, **keywords: Unpack[ChatFields]
    ) -> AsyncGenerator[ChatDelta, None]:
        """``chat`` piece by piece.  If the generator is closed early, nothing is added."""
        with self._turn():
            async for piece in self._llm._stream(
                lambda: self._chat_turn_stream(AsyncSession.chat_stream, message, params, keywords)
            ):
                yield piece
            await self._renew_pin_elsewhere()

    async def pin(self) -> int:
        """Compute the history unless it is cached, and keep it from being evicted; see ``Session.pin``."""
        with self._turn():
            request = await self._llm._run(self._prefix_call)
            return await asyncio.to_thread(self._keep, request)

    async def _renew_pin_elsewhere(self) -> None:
        if self.pinned:
            await asyncio.to_thread(self._renew_pin)

    def fork(self) -> AsyncSession:
        """Return a session with the same history, which goes on by itself.  Copies nothing in the cache."""
        made = AsyncSession(self.llm, self.options)
        made._copy_of(self)
        return made

    async def save(self, path: str | os.PathLike[str]) -> int:
        """Write the history to a file; see ``Session.save``."""
        from .session_files import save

        with self._turn():
            return await asyncio.to_thread(save, self.llm._engine, self._saved(), path, self.options.salt)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
