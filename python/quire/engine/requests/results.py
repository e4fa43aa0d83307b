"""Results of requests: pieces as they come, whole answers, and the collectors that join them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..._native.engine import Event, SampledToken
    from ...params.structured import StructuredOutputsParams
    from ..engine import EngineRequest

__all__ = [
    "Choice",
    "Collector",
    "Delta",
    "FinishReason",
    "GenerationResult",
    "Timings",
    "TokenLogprob",
    "Usage",
    "collector_of",
    "parser_of",
]

FinishReason = Literal["stop", "length", "cancelled", "tool_calls"]


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token in the model's distribution, and the most likely tokens with theirs, in order."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Timings:
    """Seconds until the request was admitted, from there to the first token, and from there to the last."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class Usage:
    """Token counts by OpenAI's names; ``cached_tokens`` counts the prompt's tokens found in the cache."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = 0

    def __getitem__(self, name: str) -> int:
        """Return a count by its name, like a dict."""
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        value: int = getattr(self, name)
        return value


@dataclass(frozen=True)
class Delta:
    """New text and tokens of a choice.  ``text`` may lag behind: incomplete characters and possible stop strings wait.

    The last one of a choice has a ``finish_reason``: ``"stop"`` (``stop_reason`` says which stop
    string or stop token), ``"length"`` or ``"cancelled"``, and in a chat ``"tool_calls"`` where it stopped for those.
    It also counts: ``n_prompt_tokens``, and ``n_cached_tokens`` of them that were found in the cache; 0 before.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0


@dataclass(frozen=True)
class Choice:
    """One answer.  ``logprobs`` (one per token) is None unless they were asked for.

    ``n_drafted_tokens`` were computed because somebody proposed them; ``n_accepted_tokens`` of these are in the answer.
    ``hidden_states``, if they were asked for: ``[n_layers, n_tokens, n]`` for the tokens of the prompt and this answer.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: list[TokenLogprob] | None
    timings: Timings
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    hidden_states: npt.NDArray[np.float32] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class GenerationResult:
    """The answers to one prompt.  ``text``, ``token_ids`` and so on are those of the first choice.

    ``prompt_logprobs`` is None unless asked for; its first entry is None, as nothing comes before the first token.
    ``n_cached_tokens``: prompt tokens that were found in the cache; of those, ``n_host_tokens`` and ``n_disk_tokens``
    came from memory of the host and from disk (docs/cache.md).
    """

    choices: list[Choice]
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprob | None] | None
    n_cached_tokens: int
    parses: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)
    n_host_tokens: int = 0
    n_disk_tokens: int = 0

    def with_hidden_states(self, states: Iterator[npt.NDArray[np.float32]]) -> GenerationResult:
        """Return the result with the next states as those of its choices."""
        return replace(self, choices=[replace(choice, hidden_states=next(states)) for choice in self.choices])

    @property
    def n_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def hidden_states(self) -> npt.NDArray[np.float32] | None:
        """Those of the prompt and the first answer, ``[n_layers, n_tokens, n]``, if they were asked for."""
        return self.choices[0].hidden_states

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def parsed(self) -> Any:
        """The first answer as data: an instance of the class given as ``response_format``, else the decoded JSON.

        None if no JSON was asked for, or if tools were called instead.  Raises RequestError for an answer that was cut
        or that the class rejects.
        """
        answer = self._answer()
        if self.parses is None or answer is None:
            return None
        try:
            return self.parses(answer)
        except (ValueError, TypeError) as error:
            cut = " (it was cut: max_tokens or the context ended it)" if self.finish_reason == "length" else ""
            raise RequestError(f"[parsed] the answer cannot be parsed: {error!s:.200}{cut}") from error

    def _answer(self) -> str | None:
        return self.text

    @property
    def usage(self) -> Usage:
        """Tokens of the prompt and of all answers."""
        n_new = sum(len(choice.token_ids) for choice in self.choices)
        return Usage(self.n_prompt_tokens, n_new, self.n_prompt_tokens + n_new, self.n_cached_tokens)

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.choices[0].stop_reason

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        return self.choices[0].logprobs

    @property
    def timings(self) -> Timings:
        return self.choices[0].timings


def _logprobs(tokens: list[SampledToken]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token.id, token.logprob, tuple(token.top)) for token in tokens)


@dataclass
class _Parts:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Collector:
    """Joins the events of one request, which has ``n`` choices, to deltas and to its result."""

    def __init__(
        self,
        prompt_token_ids: list[int],
        n: int,
        *,
        logprobs: bool,
        prompt_logprobs: bool,
        parses: Callable[[str], Any] | None = None,
    ) -> None:
        self._parses = parses
        self._prompt_token_ids = prompt_token_ids
        self._wants_logprobs = logprobs
        self._prompt_logprobs: list[TokenLogprob | None] | None = [None] if prompt_logprobs else None
        self._parts = [_Parts() for _ in range(n)]
        self._choices: dict[int, Choice] = {}
        self._n_cached_tokens = self._n_host_tokens = self._n_disk_tokens = 0

    @property
    def complete(self) -> bool:
        """True once every choice has ended."""
        return len(self._choices) == len(self._parts)

    def add(self, event: Event) -> Delta:
        """Take an event of kind ``"delta"`` or ``"finish"``."""
        parts = self._parts[event.choice]
        logprobs = _logprobs(event.logprobs)
        token_ids = tuple(event.token_ids)
        parts.texts.append(event.text)
        parts.token_ids.extend(token_ids)
        parts.logprobs.extend(logprobs)
        if self._prompt_logprobs is not None and event.prompt_logprobs:
            self._prompt_logprobs.extend(_logprobs(event.prompt_logprobs))
        if event.kind != "finish":
            return Delta(event.choice, event.text, token_ids, logprobs)
        self._finish(event, parts)
        return Delta(
            event.choice,
            event.text,
            token_ids,
            logprobs,
            event.finish_reason,
            event.stop_reason,
            len(self._prompt_token_ids),
            self._n_cached_tokens,
        )

    def _finish(self, event: Event, parts: _Parts) -> None:
        assert event.finish_reason is not None
        times = event.timings
        self._n_cached_tokens = max(self._n_cached_tokens, event.n_cached_tokens)
        self._n_host_tokens = max(self._n_host_tokens, event.n_host_tokens)
        self._n_disk_tokens = max(self._n_disk_tokens, event.n_disk_tokens)
        self._choices[event.choice] = Choice(
            index=event.choice,
            text="".join(parts.texts),
            token_ids=parts.token_ids,
            finish_reason=event.finish_reason,
            stop_reason=event.stop_reason,
            logprobs=parts.logprobs if self._wants_logprobs else None,
            timings=Timings(times.queue_s, times.prefill_s, times.decode_s),
            n_drafted_tokens=event.n_drafted_tokens,
            n_accepted_tokens=event.n_accepted_tokens,
        )

    def result(self) -> GenerationResult:
        """Return the whole result, once complete."""
        return GenerationResult(
            choices=[self._choices[i] for i in range(len(self._parts))],
            prompt_token_ids=self._prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            n_cached_tokens=self._n_cached_tokens,
            parses=self._parses,
            n_host_tokens=self._n_host_tokens,
            n_disk_tokens=self._n_disk_tokens,
        )


def parser_of(form: StructuredOutputsParams | None) -> Callable[[str], Any] | None:
    """Return the function that parses an answer of this form as data; None if the form is not JSON."""
    if form is None or (form.json is None and not form.json_object):
        return None
    return form.parses or json.loads


def collector_of(request: EngineRequest) -> Collector:
    """Return a collector for the answers to a request."""
    params = request.params
    return Collector(
        request.token_ids,
        request.n,
        logprobs=params is not None and params.logprobs is not None,
        prompt_logprobs=params is not None and params.prompt_logprobs is not None,
        parses=None if params is None else parser_of(params.structured_outputs),
    )
