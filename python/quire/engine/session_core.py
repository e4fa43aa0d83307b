"""The common part of ``Session`` and ``AsyncSession``: history, turns, and the pin that keeps them in the cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

from ..errors import CapacityError, RequestError
from ..params.chat_options import CHAT_OPTIONS, ChatOptions
from ..params.sampling import SamplingParams, chosen_adapters
from ..params.sampling_defaults import most_prompt_tokens
from .core import chat_call
from .requests.chat import ChatCollector
from .requests.prompts import RequestOptions, check_salt, is_id
from .requests.results import GenerationResult, collector_of
from .requests.truncation import cut_ids
from .running import Call, Stream
from .session_files import load, vocabulary_digest

if TYPE_CHECKING:
    import os

    from .._native.engine import Event
    from ..chat import Messages
    from ..params.chat_options import ChatFields
    from ..params.sampling import AdapterChoice, ChosenAdapters
    from .core import LLMCore
    from .engine import EngineRequest
    from .requests.chat import ChatDelta, ChatRequest, ChatResult
    from .requests.results import Delta
    from .running import Collects

__all__ = ["History", "Message", "SessionCore", "SessionOptions", "Text", "Truncation", "opened_session"]

Text: TypeAlias = "str | Sequence[int]"
"""Raw text, in which special tokens are parsed, or token ids."""
Message: TypeAlias = "str | Mapping[str, object] | Messages"
"""A user's text, a message, or several."""
History: TypeAlias = "Text | Message"
"""The beginning of a session; a string is raw text."""
Truncation: TypeAlias = Literal["disabled", "auto"]
PieceT = TypeVar("PieceT")
T = TypeVar("T")
SessionT = TypeVar("SessionT", bound="SessionCore")


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The arguments of ``LLM.session``."""

    tools: Sequence[Mapping[str, object]] | None = None
    adapter: AdapterChoice | None = None
    salt: bytes = b""
    truncation: Truncation = "disabled"
    keep_tokens: int = 0

    def __post_init__(self) -> None:
        check_salt(self.salt)
        CHAT_OPTIONS["tools"].rule.check("[session] tools", self.tools)
        if isinstance(self.tools, str) or not all(isinstance(tool, Mapping) for tool in self.tools or ()):
            raise RequestError(f"[session] tools {self.tools!r:.40}: expected function definitions")
        chosen_adapters(self.adapter)
        if self.truncation not in ("disabled", "auto"):
            raise RequestError(f"[session] truncation {self.truncation!r:.40} is unknown: expected disabled or auto")
        if not is_id(self.keep_tokens) or self.keep_tokens < 0:
            raise RequestError(f"[session] keep_tokens {self.keep_tokens!r:.40} is out of range: expected 0 or more")


@dataclass
class _Committing(Generic[PieceT]):
    """A collector that hands the whole result on once the request has ended."""

    inner: Any
    commit: Callable[[Any], None]

    @property
    def complete(self) -> bool:
        return bool(self.inner.complete)

    def add(self, event: Event) -> PieceT:
        piece: PieceT = self.inner.add(event)
        if self.inner.complete:
            self.commit(self.inner.result())
        return piece


@dataclass
class SessionCore:
    """A history that turns continue.  It holds tokens or messages, never both.

    Attributes:
        token_ids: The text so far; empty in a chat.
        messages: The conversation so far; empty for raw text.
        dropped: What the last turn left out to fit into the context, such as ``"2 oldest messages"``.
        n_pinned_tokens: Tokens that the pin keeps in the cache.
    """

    llm: LLMCore = field(repr=False)
    options: SessionOptions
    token_ids: list[int] = field(default_factory=list)
    messages: list[Mapping[str, object]] = field(default_factory=list)
    dropped: tuple[str, ...] = ()
    n_pinned_tokens: int = 0
    _is_open: bool = True
    _is_busy: bool = False
    _unpin: weakref.finalize[Any, Any] | None = field(default=None, repr=False)
    _chat: ChatOptions | None = field(default=None, repr=False)  # the last turn's
    _last: EngineRequest | None = field(default=None, repr=False)  # the last turn's, with its answer

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Allow one turn at a time.  RequestError if there is one, or the session is closed."""
        if not self._is_open:
            raise RequestError("[session] the session is closed")
        if self._is_busy:
            raise RequestError("[session] a turn is in progress: wait for it, or fork the session")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    # --- the history ---

    def append(self, more: History) -> None:
        """Add raw text or token ids, a message, or several messages, without an answer.  Computes nothing yet."""
        with self._turn():
            if isinstance(more, Mapping):
                more = [more]
            if not isinstance(more, str) and len(more) > 0 and all(isinstance(item, Mapping) for item in more):
                self._require_chat()
                self.messages = [*self.messages, *cast("Messages", more)]
            else:
                self.token_ids = self._continued(cast("Text", more))

    def _continued(self, text: Text | None) -> list[int]:
        """Return the token ids with more text after them."""
        if self.messages:
            raise RequestError("[session] the session is a chat, which takes messages and no raw text")
        if text is None or len(text) == 0:
            return self.token_ids
        if isinstance(text, str) and self.token_ids:
            text = self.llm.tokenizer.encode(text, add_special=False, parse_special=True)
        return [*self.token_ids, *self.llm._prompts.token_ids(text)]

    def _require_chat(self) -> None:
        if self.token_ids:
            raise RequestError("[session] the session is raw text, which takes no messages: open another one")

    def _copy_of(self, other: SessionCore) -> None:
        """Take over another session's history."""
        self.token_ids, self.messages = other.token_ids, other.messages
        self._chat, self._last = other._chat, other._last

    def _saved(self) -> dict[str, Any]:
        """Return what a file of the session has."""
        return {
            "model": self.llm.model_name,
            "vocabulary": vocabulary_digest(self.llm.tokenizer) if self.token_ids else "",
            "token_ids": self.token_ids,
            "messages": self.messages,
            "tools": self.options.tools,
            "computed_ids": self._computed_ids(),
            "adapter": self._adapter(),
        }

    def _computed_ids(self) -> list[int]:
        """Return tokens that the cache may have, for the file of the session; not with images."""
        last = self._last
        if last is None:
            return self.token_ids
        has_other = last.params is not None and last.params.adapter != self._adapter()  # a turn's own adapters
        return [] if last.media is not None or has_other else last.token_ids

    def _adapter(self) -> ChosenAdapters:
        return chosen_adapters(self.options.adapter)

    def _params(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters of a turn, with the session's adapters if it chooses none."""
        if params.n != 1:
            raise RequestError(
                f"[session] n {params.n} is not supported: a turn has one answer (fork the session instead)"
            )
        return replace(params, adapter=self.options.adapter) if params.adapter is None else params

    # --- turns ---

    def _generation(
        self, text: Text | None, params: SamplingParams | None, options: RequestOptions
    ) -> tuple[EngineRequest, Callable[[GenerationResult], None]]:
        """Return the request that continues the text, and the function that adds its answer."""
        ids = self._continued(text)
        if not ids:
            raise RequestError("[session] the session is empty: give a prompt")
        options = replace(options, salt=self.options.salt)
        params = self._params(options.keywords.sampling_params(params))
        n_most = most_prompt_tokens(self.llm.n_ctx, params.max_tokens)
        dropped: tuple[str, ...] = ()
        if self.options.truncation == "auto" and len(ids) > n_most:
            # Half of what may be dropped, so that the next turns find what this one computes.
            keep = min(self.options.keep_tokens, n_most)
            dropped = (f"{len(ids) - keep - (n_most - keep) // 2} tokens",)
            ids = cut_ids(ids, keep + (n_most - keep) // 2, keep)
        request = self.llm._prompts.request(ids, params, replace(options, keywords=type(options.keywords)()))

        def commit(result: GenerationResult) -> None:
            self.token_ids, self.dropped = [*ids, *result.token_ids], dropped
            self._last = replace(request, token_ids=self.token_ids)

        return request, commit

    def _chat_turn(
        self, method: Callable[..., object], message: Message, params: SamplingParams | None, given: ChatFields
    ) -> tuple[ChatRequest, Callable[[ChatResult], None]]:
        """Return the request that answers the conversation, and the function that adds the answer."""
        self._require_chat()
        if "salt" in given:
            raise RequestError("[session] salt is the session's: give it to LLM.session")
        options, chat = chat_call(method, given)
        options = replace(options, salt=self.options.salt)
        if "tools" not in given:
            chat = replace(chat, tools=self.options.tools)
        params = self._params(options.keywords.sampling_params(params, self.llm.advised_sampling))
        if self.options.truncation == "auto" and chat.max_prompt_tokens is None:
            chat = replace(chat, max_prompt_tokens=most_prompt_tokens(self.llm.n_ctx, params.max_tokens))
        messages = [*self.messages, *_messages(message)]
        if not messages:
            raise RequestError("[session] the session is empty: give a message")
        plain = replace(options, keywords=type(options.keywords)())
        request = self.llm._prompts.chat_request(messages, params, plain, chat)

        def commit(result: ChatResult) -> None:
            kept = messages
            answer = result.message.as_dict()
            if chat.continue_final_message:
                kept = messages[:-1]
                answer["content"] = f"{messages[-1].get('content') or ''}{answer.get('content') or ''}"
            self.messages = [*kept, answer]
            self._chat, self.dropped = chat, tuple(name for name in request.ignored if name[:1].isdigit())
            self._last = replace(request.engine, token_ids=[*request.engine.token_ids, *result.token_ids])

        return request, commit

    def _generate_call(
        self, text: Text | None, params: SamplingParams | None, options: RequestOptions
    ) -> Call[GenerationResult]:
        request, commit = self._generation(text, params, options)
        return _call(request, collector_of(request), commit)

    def _generate_stream(
        self, text: Text | None, params: SamplingParams | None, options: RequestOptions
    ) -> Stream[Delta]:
        request, commit = self._generation(text, params, options)
        return Stream(request, _Committing[Any](collector_of(request), commit))

    def _chat_turn_call(
        self, method: Callable[..., object], message: Message, params: SamplingParams | None, given: ChatFields
    ) -> Call[ChatResult]:
        request, commit = self._chat_turn(method, message, params, given)
        return _call(request.engine, ChatCollector(request, collector_of(request.engine)), commit)

    def _chat_turn_stream(
        self, method: Callable[..., object], message: Message, params: SamplingParams | None, given: ChatFields
    ) -> Stream[ChatDelta]:
        request, commit = self._chat_turn(method, message, params, given)
        collector: Collects[ChatDelta] = _Committing(ChatCollector(request, collector_of(request.engine)), commit)
        return Stream(request.engine, collector)

    # --- the pin ---

    def _prefix(self) -> EngineRequest:
        """Return a request that computes the history.  RequestError if it is empty."""
        options = RequestOptions(salt=self.options.salt)
        params = self._params(SamplingParams(max_tokens=1, temperature=0))
        if self.token_ids:
            return self.llm._prompts.request(self.token_ids, params, options)
        if not self.messages:
            raise RequestError("[session] the session is empty: nothing can be pinned or restored")
        chat = self._chat or ChatOptions(tools=self.options.tools)
        chat = replace(chat, add_generation_prompt=False, continue_final_message=False, reasoning_budget=None)
        return self.llm._prompts.chat_request(self.messages, params, options, chat).engine

    def _prefix_call(self) -> Call[EngineRequest]:
        request = self._prefix()
        return Call([(request, collector_of(request))], lambda: request)

    def _keep(self, request: EngineRequest) -> int:
        """Pin what the cache has of a request's prompt, in place of what was pinned; return the number of tokens."""
        engine = self.llm._engine
        pin, n_tokens = engine.pin(request)
        self.unpin()
        self._unpin = weakref.finalize(self, engine.unpin, pin)
        self.n_pinned_tokens = n_tokens
        return n_tokens

    def _renew_pin(self) -> None:
        """Let the pin cover the last turn, too, if there is room for that."""
        if self._unpin is not None and self._last is not None:
            with suppress(CapacityError):
                self._keep(self._last)

    @property
    def pinned(self) -> bool:
        """True from ``pin`` to ``unpin``."""
        return self._unpin is not None

    def unpin(self) -> None:
        """Let the cache evict the session.  May be called again."""
        if self._unpin is not None:
            self._unpin()
        self._unpin, self.n_pinned_tokens = None, 0

    def close(self) -> None:
        """End the session and its pin.  The model stays open.  May be called again."""
        self.unpin()
        self._is_open = False


def opened_session(
    made: type[SessionT],
    llm: LLMCore,
    options: SessionOptions,
    history: History | None,
    path: str | os.PathLike[str] | None,
) -> SessionT:
    """Return a session that begins with a history or with a file.  RequestError for both."""
    if path is None:
        session = made(llm, options)
        if history:
            session.append(history)
        return session
    if history is not None:
        raise RequestError("[session] history cannot be combined with path: give one")
    kept = load(llm._engine, path, llm.tokenizer, options.salt)
    if options.adapter is None and kept["adapter"] is not None:
        options = replace(options, adapter=[(name, scale) for name, scale in kept["adapter"]])
    if options.tools is None:
        options = replace(options, tools=kept["tools"])
    session = made(llm, options, kept["token_ids"], kept["messages"])
    if kept.get("text"):  # a server's session
        session.append(kept["text"])
    return session


def _call(request: EngineRequest, collector: Any, commit: Callable[[T], None]) -> Call[T]:
    def result() -> T:
        whole: T = collector.result()
        commit(whole)
        return whole

    return Call([(request, collector)], result)


def _messages(given: Message) -> list[Mapping[str, object]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [given] if isinstance(given, Mapping) else list(given)
