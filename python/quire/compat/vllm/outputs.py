"""vLLM's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...engine.requests.results import Choice, GenerationResult, TokenLogprob
    from ...tokenizer import Tokenizer

__all__ = [
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "RequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
    "request_output",
]


@dataclass
class Logprob:
    """A token's log-probability, its rank, and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: None = None

    def finished(self) -> bool:
        """True once the answer is complete."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: None = None
    num_cached_tokens: int | None = None


@dataclass
class EmbeddingOutput:
    """A vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Its number of entries."""
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput:
    """A prompt and its vector."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass
class ClassificationOutput:
    """Probabilities of classes."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


@dataclass
class ClassificationRequestOutput:
    """A prompt and the probabilities of its classes."""

    request_id: str
    outputs: ClassificationOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass
class ScoringOutput:
    """A score: how well a text answers another one."""

    score: float


@dataclass
class ScoringRequestOutput:
    """A pair of texts and its score."""

    request_id: str
    outputs: ScoringOutput
    finished: bool = True


def request_output(number: int, prompt: str | None, result: GenerationResult, tokenizer: Tokenizer) -> RequestOutput:
    """Convert a result of the engine to vLLM's shape."""
    before = result.prompt_logprobs
    return RequestOutput(
        request_id=str(number),
        prompt=prompt,
        prompt_token_ids=result.prompt_token_ids,
        prompt_logprobs=None if before is None else [_ranked(token, tokenizer) for token in before],
        outputs=[_completion(choice, tokenizer) for choice in result.choices],
        num_cached_tokens=result.n_cached_tokens,
    )


def _completion(choice: Choice, tokenizer: Tokenizer) -> CompletionOutput:
    tokens = choice.logprobs
    shown = None if tokens is None else [row for token in tokens if (row := _ranked(token, tokenizer)) is not None]
    return CompletionOutput(
        index=choice.index,
        text=choice.text,
        token_ids=choice.token_ids,
        cumulative_logprob=None if tokens is None else sum(token.logprob for token in tokens),
        logprobs=shown,
        # vLLM reports no stop reason for the usual end-of-text tokens.
        finish_reason="stop" if choice.finish_reason == "tool_calls" else choice.finish_reason,
        stop_reason=None if choice.stop_reason in tokenizer.eog_ids else choice.stop_reason,
    )


def _ranked(token: TokenLogprob | None, tokenizer: Tokenizer) -> dict[int, Logprob] | None:
    if token is None:
        return None
    rows = {}
    for rank, (token_id, logprob) in enumerate(token.top, 1):
        rows[token_id] = Logprob(logprob, rank, tokenizer.decode([token_id], skip_special=False))
    if token.token_id not in rows:
        shown = tokenizer.decode([token.token_id], skip_special=False)
        rows[token.token_id] = Logprob(token.logprob, None, shown)
    return rows
