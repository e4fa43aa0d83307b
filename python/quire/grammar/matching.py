"""A compiled grammar, and the position of an answer in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher

__all__ = ["DEAD_END", "Grammar", "Matcher"]

DEAD_END = "NoExtensionBias"  # in llguidance's message when no token can follow
_NO_TOKENS = "the vocabulary has no tokens for what the grammar requires next"


class Matcher:
    """The position of one answer in a grammar.  For one thread at a time."""

    def __init__(self, copy: Callable[[], LLMatcher], drawable: npt.NDArray[np.uint32]) -> None:
        """Create a matcher.  ``copy`` returns an llguidance matcher at the beginning."""
        self._copy, self._drawable = copy, drawable
        self._matcher: LLMatcher | None = copy()  # None: failed, restored from the tokens when needed
        self._tokens: list[int] = []

    def advance(self, token: int) -> None:
        """Consume a token.  RequestError if the grammar is too complex to follow."""
        matcher = self._restored()
        self._tokens.append(token)
        if not matcher.consume_token(token):
            raise self._too_complex(matcher)

    def follow(self, first: int, tokens: Sequence[int]) -> None:
        """Replace the tokens from number ``first`` on.  Raises as ``advance``."""
        n_same = 0
        for known, token in zip(self._tokens[first:], tokens, strict=False):
            if known != token:
                break
            n_same += 1
        self._cut(first + n_same)
        for token in tokens[n_same:]:
            self.advance(token)

    def _cut(self, n: int) -> None:
        n_wrong = len(self._tokens) - n
        del self._tokens[n:]
        if not n_wrong or self._matcher is None:
            return
        # llguidance cannot roll back over an end of generation exactly.
        if self._matcher.is_stopped() or not self._matcher.rollback(n_wrong):
            self._matcher = None

    def _restored(self) -> LLMatcher:
        """Return the matcher, or a new one at the same position: a matcher that has failed cannot be used again."""
        if self._matcher is None:
            self._matcher = self._copy()
            if not self._matcher.consume_tokens(self._tokens):
                raise self._too_complex(self._matcher)
        return self._matcher

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Write the mask of the tokens that may come next.  It has end of generation only where the answer is complete.

        Raises:
            RequestError: The grammar is too complex to follow, or the vocabulary has no token that could come next.
        """
        matcher = self._restored()
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            raise self._too_complex(matcher)
        # llguidance does not check whether a forced text has tokens.
        mask &= self._drawable
        if not mask.any():
            raise RequestError(f"[grammar] {_NO_TOKENS}")

    def fill_ahead(self, mask: npt.NDArray[np.uint32], most: int) -> list[int]:
        """Advance while the mask allows a single token, at most ``most`` times.

        Writes the mask after those tokens and returns them.  Raises as ``fill`` for the first mask; a later mask that
        cannot be computed raises when its turn comes.
        """
        self.fill(mask)
        forced: list[int] = []
        while len(forced) < most and not self.is_complete and (token := _only_token(mask)) is not None:
            before = mask.copy()
            try:
                self.advance(token)
                self.fill(mask)
            except RequestError:
                self._cut(len(self._tokens) - 1)
                mask[:] = before
                break
            forced.append(token)
        return forced

    @property
    def is_complete(self) -> bool:
        """True if the answer may end here."""
        return self._restored().is_accepting()

    def _too_complex(self, matcher: LLMatcher) -> RequestError:
        self._matcher = None
        reason = " ".join(matcher.get_error().split())[:200]
        if DEAD_END in reason:
            return RequestError(f"[grammar] {_NO_TOKENS}")
        return RequestError(f"[grammar] the grammar is too complex to follow: {reason}")


def _only_token(mask: npt.NDArray[np.uint32]) -> int | None:
    """Return the only token that a mask allows, or None."""
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
        """Return a matcher at the beginning."""
        return Matcher(self._copied, self._drawable)

    def _copied(self) -> LLMatcher:
        with self._lock:
            return self._matcher.deep_copy()
