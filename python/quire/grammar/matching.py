"""A compiled grammar, and where an answer stands in it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher

__all__ = ["DEAD_END", "Grammar", "Matcher"]

DEAD_END = "NoExtensionBias"  # llguidance's word for a place that no token leads on from
_NO_TOKENS = "the vocabulary must have tokens for what is to come but has none"


class Matcher:
    """Where one answer stands in a grammar.  One thread at a time."""

    def __init__(self, matcher: LLMatcher, drawable: npt.NDArray[np.uint32]) -> None:
        self._matcher, self._drawable = matcher, drawable
        self._failure: RequestError | None = None  # of going ahead

    def advance(self, token: int) -> None:
        """A token was drawn.  RequestError where the grammar is too complex to go on."""
        if self._failure is not None:
            raise self._failure
        if not self._matcher.consume_token(token):
            raise self._too_complex()

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Write which tokens may come next, end of generation among them only where the grammar is complete.

        RequestError where the grammar is too complex to go on, or the vocabulary has no token to go on with.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise self._too_complex()
        # Where a text is forced, it is not looked at whether there are tokens for it.
        mask &= self._drawable
        if not mask.any():
            raise RequestError(f"[grammar] {_NO_TOKENS}")

    def fill_ahead(self, mask: npt.NDArray[np.uint32], most: int) -> list[int]:
        """Go on as long as a mask allows one token alone, ``most`` times; those tokens, and the mask behind them.

        Raises as ``fill``, of the first mask.  Where a later one cannot be computed, ``advance`` says so when its turn
        comes.
        """
        self.fill(mask)
        forced: list[int] = []
        while len(forced) < most and not self.is_complete and (token := _only_token(mask)) is not None:
            forced.append(token)
            before = mask.copy()
            try:
                self.advance(token)
                self.fill(mask)
            except RequestError as error:
                self._failure = error
                mask[:] = before
                return forced[:-1]
        return forced

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_accepting()

    def _too_complex(self) -> RequestError:
        reason = " ".join(self._matcher.get_error().split())[:200]
        if DEAD_END in reason:
            return RequestError(f"[grammar] {_NO_TOKENS}")
        return RequestError(f"[grammar] the grammar must be simple enough to follow but {reason}")


def _only_token(mask: npt.NDArray[np.uint32]) -> int | None:
    """The token that a mask allows, where it is one alone."""
    (used,) = mask.nonzero()
    if len(used) != 1:
        return None
    word = int(mask[used[0]])
    return None if word & (word - 1) else 32 * int(used[0]) + word.bit_length() - 1


class Grammar:
    """A compiled grammar.  Thread-safe."""

    def __init__(self, matcher: LLMatcher, drawable: npt.NDArray[np.uint32]) -> None:
        self._matcher, self._drawable = matcher, drawable
        self._lock = threading.Lock()

    def matcher(self) -> Matcher:
        """A matcher at the beginning."""
        with self._lock:
            return Matcher(self._matcher.deep_copy(), self._drawable)
