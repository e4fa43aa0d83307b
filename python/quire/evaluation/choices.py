"""Multiple-choice tasks: the text that a model finds most likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .losses import token_losses
from .scorer import STEP_TOKENS, Scorer
from .tasks import Task

__all__ = ["Score", "choose"]

_Z95 = 1.959963984540054


@dataclass
class Score:
    """The number of solved tasks out of ``n``; ``chance`` is the expected number for guessing."""

    n_right: int = 0
    n: int = 0
    chance: float = 0.0

    @property
    def accuracy(self) -> float:
        """The fraction of solved tasks."""
        return self.n_right / max(1, self.n)

    @property
    def error(self) -> float:
        """The standard error of the accuracy."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / (self.n - 1)) if self.n > 1 else 0.0

    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % confidence interval."""
        z = _Z95**2 / max(1, self.n)
        width = z * math.sqrt(max(1, self.n) * (4 * self.accuracy * (1 - self.accuracy) + z)) / (2 * _Z95)
        middle = self.accuracy + z / 2
        return (middle - width) / (1 + z), (middle + width) / (1 + z)


def choose(scorer: Scorer, tasks: Sequence[Task], on_task: Callable[[Score], None] | None = None) -> Score:
    """Score choices by their mean log-probability per token; the first of equal ones wins."""
    score = Score()
    begin = n_tokens = 0
    for i, task in enumerate(tasks):
        n_tokens += sum(map(len, task.choices))
        if n_tokens < STEP_TOKENS and i + 1 < len(tasks):
            continue
        for one, means in zip(tasks[begin : i + 1], _means(scorer, tasks[begin : i + 1]), strict=True):
            score.n_right += means.index(max(means)) in one.right
            score.n += 1
            score.chance += len(one.right) / len(one.choices)
            if on_task is not None:
                on_task(score)
        begin, n_tokens = i + 1, 0
    return score


def _means(scorer: Scorer, tasks: Sequence[Task]) -> list[list[float]]:
    """Return the mean log-probabilities of each task's choices."""
    rows = [choice for task in tasks for choice in task.choices]
    spans = [span for task in tasks for span in task.spans]
    found = []
    firsts = [begin - 1 for begin, _ in spans]
    for row, (begin, end), logits in zip(rows, spans, scorer.logits(rows, firsts), strict=True):
        found.append(-float(token_losses(logits[: end - begin], row[begin:end]).mean()))
    parts = iter(found)
    return [[next(parts) for _ in task.choices] for task in tasks]
