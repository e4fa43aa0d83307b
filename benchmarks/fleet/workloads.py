"""Made-up conversations with the statistics of published traces."""

from __future__ import annotations

import itertools
import math
import random
from array import array
from dataclasses import dataclass, field

__all__ = ["WORKLOADS", "Session", "Workload"]


@dataclass(frozen=True)
class Workload:
    """How long prompts and answers are, and how often they go on.

    Lengths are log-normal, numbers of calls geometric, pauses exponential.

    Attributes:
        systems, system_tokens: System messages, the first of which is asked for most (Zipf), and their length.
        first_tokens, added_tokens, answer_tokens: Means: of the first prompt without the system message, of what each
            later call adds to the conversation, of an answer.
        spread: Standard deviation of the logarithm of these lengths.
        calls: Mean number of calls of a session.
        pause_s: Mean time from an answer to the next call.
        long_pause_s, long_share: The same of a part of the pauses, in which a person reads.
        first_token_s, token_s: The limits of a good answer: time to the first token, time for each other one.
    """

    systems: int
    system_tokens: int
    first_tokens: int
    added_tokens: int
    answer_tokens: int
    spread: float
    calls: float
    pause_s: float
    long_pause_s: float
    long_share: float
    first_token_s: float
    token_s: float


WORKLOADS = {
    # Mooncake's trace "conversation" (FAST '25, appendix): 12 031 requests of an hour, prompts of 12 035 and answers of
    # 343 tokens on average; 40 % of the prompts' blocks are found with an unlimited cache.  Pauses are not published.
    "chat": Workload(
        systems=4, system_tokens=512, first_tokens=9700, added_tokens=2600, answer_tokens=343, spread=1.0, calls=1.58,
        pause_s=20.0, long_pause_s=20.0, long_share=0.0, first_token_s=5.0, token_s=0.1,
    ),
    # GitHub Copilot's coding agents, June 2026 (AzurePublicDataset): 301 000 sessions of 3.95 turns of 7.83 calls;
    # 67 900 tokens per prompt, 85.7 % of them cached, 528 per answer.  The times of tools and readers are not in the
    # summary, nor how contexts are compacted: here they only grow, and 98 % are found with an unlimited cache.
    "agents": Workload(
        systems=8, system_tokens=12000, first_tokens=12000, added_tokens=1050, answer_tokens=528, spread=0.8,
        calls=31.0, pause_s=4.0, long_pause_s=90.0, long_share=3.95 / 31, first_token_s=10.0, token_s=0.1,
    ),
}  # fmt: skip


@dataclass
class Session:
    """A conversation.  Tokens are counted, never the same in two sessions but for the system message."""

    workload: Workload
    draw: random.Random
    scale: int
    numbers: itertools.count[int]
    tokens: array[int] = field(default_factory=lambda: array("i"))
    hashes: list[int] = field(default_factory=list)
    n_left: int = 0
    n_answer: int = 0

    def __post_init__(self) -> None:
        work = self.workload
        system = min(int(self.draw.paretovariate(1.0)), work.systems)
        n = max(1, work.system_tokens // self.scale)
        self.tokens = array("i", range(-system * (1 << 20), -system * (1 << 20) + n))
        self.n_left = 1 + int(math.log(1 - self.draw.random()) / math.log(1 - 1 / work.calls)) if work.calls > 1 else 1
        self._add(work.first_tokens)

    def skip(self) -> None:
        """Begin in the middle, as sessions do that are watched from some moment on."""
        for _ in range(self.draw.randrange(self.n_left)):
            self.next()

    def next(self) -> None:
        """Add the answer and the next prompt to the conversation."""
        self.n_left -= 1
        self.tokens += self.fresh(self.n_answer)
        self._add(self.workload.added_tokens)

    def fresh(self, n: int) -> array[int]:
        """Return tokens that nobody has used."""
        first = next(self.numbers) * (1 << 7) % (1 << 30)  # enough for fleets of 10 000, several tokens counted as one
        for _ in range(n >> 7):
            next(self.numbers)
        return array("i", range(first, first + n))

    def pause(self) -> float:
        """Return the seconds until the next call."""
        is_long = self.draw.random() < self.workload.long_share
        return self.draw.expovariate(1 / (self.workload.long_pause_s if is_long else self.workload.pause_s))

    def prefix_hashes(self, block: int) -> list[int]:
        """Return a hash for each block of the prompt, each including all blocks before it."""
        parent = self.hashes[-1] if self.hashes else 0
        for start in range(len(self.hashes) * block, len(self.tokens) - block + 1, block):
            parent = hash((parent, *self.tokens[start : start + block]))
            self.hashes.append(parent)
        return self.hashes

    def _add(self, mean: int) -> None:
        self.tokens += self.fresh(self._length(mean))
        self.n_answer = self._length(self.workload.answer_tokens)

    def _length(self, mean: int) -> int:
        spread = self.workload.spread
        drawn = self.draw.lognormvariate(math.log(mean) - spread * spread / 2, spread)
        return max(1, round(min(drawn, 20 * mean) / self.scale))
