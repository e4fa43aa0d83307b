"""Limit how long a model may reason: at the limit, the end of reasoning is forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.chat.reasoning import ReasoningFormat

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ReasoningBudget"]

MAX_START_TOKENS = 16


@dataclass
class ReasoningBudget:
    """A logits processor that forces ``end_ids`` after ``n_tokens`` of reasoning.

    It depends only on the tokens so far, so one processor serves all choices of a request.

    Attributes:
        n_prompt: The number of tokens of the prompt.
        decode: Turns token ids into text, with control tokens.
        opened: The prompt ended within reasoning.
    """

    form: ReasoningFormat
    n_tokens: int
    n_prompt: int
    opened: bool
    end_ids: Sequence[int]
    decode: Callable[[Sequence[int]], str]
    _ended: dict[tuple[int, ...], bool] = field(default_factory=dict)

    def __call__(self, token_ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        forced = self.forced(token_ids[self.n_prompt :])
        if forced is None:
            return logits
        row: npt.NDArray[np.float32] = logits.copy()
        row.fill(-float("inf"))
        row[forced] = 0.0
        return row

    def forced(self, generated: Sequence[int]) -> int | None:
        """Return the token that must come next, or None for any."""
        begin = 0 if self.opened else self._begin(generated)
        if begin is None or len(generated) - begin < self.n_tokens:
            return None
        cut = begin + self.n_tokens
        number = len(generated) - cut
        if number >= len(self.end_ids) or self._ended_before(tuple(generated[:cut])):
            return None
        return self.end_ids[number]

    def _begin(self, generated: Sequence[int]) -> int | None:
        """Return the number of tokens up to the start of reasoning, or None without reasoning."""
        for n in range(1, min(len(generated), MAX_START_TOKENS) + 1):
            if self.decode(generated[:n]).lstrip().startswith(self.form.start):
                return n
        return None

    def _ended_before(self, generated: tuple[int, ...]) -> bool:
        if generated not in self._ended:
            self._ended[generated] = self.form.end in self.decode(generated)
        return self._ended[generated]
