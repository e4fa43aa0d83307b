"""llama.cpp's time limit for generating an answer: it ends with the next complete line."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PredictLimit"]


@dataclass
class _Choice:
    first_s: float
    n_tokens: int = 0
    has_line: bool = False
    over: bool = False


@dataclass
class PredictLimit:
    """Ends choices of a request ``seconds`` after their first token."""

    seconds: float
    n_choices: int
    _choices: dict[int, _Choice] = field(default_factory=dict)

    def takes(self, choice: int, text: str, n_tokens: int, now_s: float) -> bool:
        """Return True if these tokens still belong to the answer; they are the last ones if the time is over."""
        state = self._choices.setdefault(choice, _Choice(now_s))
        if state.over:
            return False
        state.n_tokens += n_tokens
        state.has_line = state.has_line or "\n" in text
        state.over = state.has_line and now_s - state.first_s > self.seconds
        return True

    def n_taken(self, choice: int) -> int | None:
        """Return the tokens of a choice that has ended; None if it has not."""
        state = self._choices.get(choice)
        return state.n_tokens if state is not None and state.over else None

    @property
    def all_over(self) -> bool:
        """True if all choices have ended."""
        return sum(state.over for state in self._choices.values()) == self.n_choices
