"""Classifier-free guidance: two sequences in one batch, of which the second pushes the answer away from its own.

The second one, the *shadow*, begins with the negative prompt and gets the tokens of the answer.  A token's scores are
``shadow + scale * (answer - shadow)``, of log-probabilities (Sanchez et al. 2023, as transformers computes it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Row = npt.NDArray[np.float32]

__all__ = ["Guidance"]


@dataclass
class _Choice:
    answer: Row | None = None
    shadow: Row | None = None
    n_shadow: int = 0  # tokens that the shadow has


@dataclass
class Guidance:
    """The rows of one guided request that have come.  For one thread at a time."""

    shadow_id: int
    scale: float
    n_prompt: int
    choices: dict[int, _Choice] = field(default_factory=dict)

    def add(self, choice: int, row: Row, *, is_shadow: bool) -> None:
        """Add a row of logits, which waits for its answer."""
        state = self.choices.setdefault(choice, _Choice())
        if is_shadow:
            state.shadow = row
        else:
            state.answer = row

    def answers(self, choice: int, token_ids: Sequence[int]) -> Iterator[tuple[bool, Row]]:
        """Yield the rows that can be answered: whether it is the shadow's, and its logits.

        ``token_ids``: the prompt and the tokens of the answer.
        """
        state, n_answer = self.choices.setdefault(choice, _Choice()), len(token_ids) - self.n_prompt
        if state.shadow is not None and state.n_shadow < n_answer:
            forced = np.full_like(state.shadow, -np.inf)
            forced[token_ids[self.n_prompt + state.n_shadow]] = 0
            state.shadow, state.n_shadow = None, state.n_shadow + 1
            yield True, forced
        elif state.shadow is not None and state.answer is not None:
            answer, shadow = _log_softmax(state.answer), _log_softmax(state.shadow)
            state.answer = None
            # Tokens that the answer excludes stay excluded, whatever the shadow's is.
            pushed = np.where(np.isfinite(shadow), shadow + self.scale * (answer - shadow), answer)
            yield False, pushed.astype(np.float32)


def _log_softmax(row: Row) -> npt.NDArray[np.float64]:
    shifted = row.astype(np.float64) - row.max()
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return found
