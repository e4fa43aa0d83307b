"""A decoder with a fake model, and that model's logits.

Oracle: the fake model's logits are a documented hash of a sequence's tokens (native/testing/fake_executor.h),
implemented again here, so that greedy answers, log-probabilities and rows of logits are known without a cache.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from quire._native.engine import (
    Decoder,
    DecoderConfig,
    Drafter,
    Event,
    Request,
    SampledToken,
    SamplingParams,
    VocabInfo,
)
from quire._native.testing import FakeExecutor

N_VOCAB = 64
EOG = 63
ACCENT = (60, 61)  # the two bytes of one character
TEXT = [chr(ord("a") + i % 26).encode() for i in range(N_VOCAB)]
TEXT[ACCENT[0]], TEXT[ACCENT[1]], TEXT[EOG] = b"\xc3", b"\xa9", b""
U64 = (1 << 64) - 1


@dataclass(frozen=True)
class Layers:
    """The fake model's layers: (window, chunk) of those that keep rows, and whether one has a recurrent state."""

    groups: tuple[tuple[int, int], ...] = ((0, 0),)
    has_state: bool = False

    @staticmethod
    def first_seen(group: tuple[int, int], position: int) -> int:
        window, chunk = group
        return position // chunk * chunk if chunk else max(0, position - window + 1) if window else 0

    def options(self) -> dict[str, object]:
        return {"layers": self.groups, "n_state": 6 * self.has_state}


FULL = Layers()


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


def hash_of(values: Sequence[int]) -> int:
    h = 0
    for value in values:
        h = mix((h * 31 + value + 1) & U64)
    return h


def logits_after(tokens: Sequence[int], layers: Layers = FULL) -> np.ndarray:
    seen = [hash_of(tokens[layers.first_seen(group, len(tokens) - 1) :]) for group in sorted(layers.groups)]
    if layers.has_state:
        seen.append(hash_of(tokens))
    h = seen[0] if len(seen) == 1 else hash_of(seen)
    return np.array([(mix((h + v) & U64) >> 40) / 2**21 for v in range(N_VOCAB)], dtype=np.float32)


def greedy_without_eog(tokens: Sequence[int], n: int, layers: Layers = FULL) -> list[int]:
    """Return the greedy answer with ``ignore_eos``, which excludes the end of generation."""
    tokens = list(tokens)
    n_prompt = len(tokens)
    for _ in range(n):
        row = logits_after(tokens, layers)
        row[EOG] = -np.inf
        tokens.append(int(np.argmax(row)))
    return tokens[n_prompt:]


def log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row.astype(np.float64) - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(TEXT[token] for token in tokens).decode(errors="replace")


def prompt(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed * 1000 + n)
    return [rng.randrange(N_VOCAB - 4) for _ in range(n)]


def mask_of(ids: Sequence[int], n_vocab: int = N_VOCAB) -> npt.NDArray[np.uint32]:
    bits = np.zeros(-(-n_vocab // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def params(**values: object) -> SamplingParams:
    result = SamplingParams()
    settings = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **values}
    for name, value in settings.items():
        setattr(result, name, value)
    return result


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[SampledToken] = field(default_factory=list)
    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    finish: Event | None = None
    error: Event | None = None


class Client:
    """A decoder and its answers so far."""

    def __init__(
        self,
        *,
        n_ctx: int = 256,
        config: dict[str, object] | None = None,
        drafters: Sequence[Drafter] = (),
        **executor: object,
    ) -> None:
        options = {"n_vocab": N_VOCAB, "block_tokens": 4, "n_blocks": 129, **executor}
        decoder = Decoder(
            FakeExecutor(**options),  # type: ignore[arg-type]
            VocabInfo(N_VOCAB, [EOG], TEXT),
            DecoderConfig(n_ctx=n_ctx, **(config or {})),  # type: ignore[arg-type]
            list(drafters),
        )
        self.watch(decoder)

    def watch(self, decoder: Decoder) -> None:
        """Collect a decoder's events, from its first request on."""
        self.decoder = decoder
        self.answers: dict[tuple[int, int], Answer] = {}
        self.events: list[Event] = []
        self.open: dict[int, int] = {}  # request -> choices that have not ended

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.decoder.close()

    def submit(self, tokens: Sequence[int], sampling: SamplingParams | None = None, **options: object) -> int:
        sampling = sampling or params()
        id_ = self.decoder.submit(Request(tokens, sampling, **options))  # type: ignore[arg-type]
        self.open[id_] = sampling.n
        for choice in range(sampling.n):
            self.answers[id_, choice] = Answer()
        return id_

    def poll(self, timeout_s: float = 10.0) -> list[Event]:
        events = self.decoder.wait(timeout_s)
        for event in events:
            self.take(event)
        self.events += events
        return events

    def take(self, event: Event) -> None:
        answer = self.answers[event.request_id, event.choice]
        assert answer.finish is None, "an event of a choice after its finish"
        assert answer.error is None, "an event of a request after its error"
        if event.kind == "delta":
            answer.token_ids += event.token_ids
            answer.text += event.text
            answer.logprobs += event.logprobs
            answer.prompt_logprobs += event.prompt_logprobs
        elif event.kind == "finish":
            answer.finish = event
            self.open[event.request_id] -= 1
        elif event.kind == "error":
            answer.error = event
            self.open[event.request_id] = 0

    def run(self, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while any(self.open.values()):
            assert time.monotonic() < deadline, "the decoder makes no progress"
            self.poll(1.0)

    def answer(self, id_: int, choice: int = 0) -> Answer:
        return self.answers[id_, choice]

    def expect_all_free(self) -> None:
        stats = self.decoder.stats()
        assert (stats.n_free_blocks, stats.n_requests) == (stats.n_usable_blocks, 0)
        assert (stats.n_running, stats.n_waiting, stats.n_following) == (0, 0, 0)
        assert (stats.n_failed_checks, stats.failed_check) == (0, "")
        assert sum(kind.held for kind in [*stats.cache.groups, stats.cache.states]) == 0


def mixed_requests() -> list[tuple[list[int], SamplingParams]]:
    rng = random.Random(7)
    shared = [prompt(24, seed=100), prompt(17, seed=101)]
    requests = []
    for i in range(32):
        head = shared[i % 3] if i % 3 < 2 else []
        tokens = head + prompt(rng.randrange(1, 40), seed=i)
        values: dict[str, object] = {"max_tokens": rng.randrange(4, 48)}
        if i % 2:
            values |= {"temperature": 0.9, "top_p": 0.95, "seed": i, "repetition_penalty": 1.1}
        if i % 5 == 0:
            values |= {"n": 3, "temperature": 1.0, "seed": 1000 + i}
        if i % 4 == 0:
            values |= {"logprobs": 2}
        if i % 7 == 0:
            values |= {"prompt_logprobs": 1}
        requests.append((tokens, params(**values)))
    return requests


def comparable(answer: Answer) -> tuple[object, ...]:
    def rows(tokens: list[SampledToken]) -> list[object]:
        return [(token.id, token.logprob, token.top) for token in tokens]

    finish = answer.finish
    assert finish is not None, answer.error and answer.error.error
    return (
        answer.token_ids,
        answer.text,
        rows(answer.logprobs),
        rows(answer.prompt_logprobs),
        finish.finish_reason,
        finish.n_generated_tokens,
    )
