"""Grammars that begin at a trigger: any text may come before it, and an answer without a trigger is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RequestError
from .frame import Frame, FrameWriter
from .matching import Grammar, Matcher

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["LazyGrammar", "Trigger", "free_frame"]


@dataclass(frozen=True)
class Trigger:
    """A text with which a grammar begins, and ids that show it."""

    text: bytes
    ids: tuple[int, ...]


def free_frame(triggers: Sequence[str]) -> Frame:
    """Return the frame of the text before the grammar: none of the triggers, or one at its very end."""
    writer = FrameWriter()
    writer.free_text("TEXT", tuple(triggers))
    writer.rule("start", " | ".join(["TEXT?", *(writer.mark(trigger, before="TEXT") for trigger in triggers)]))
    return writer.frame()


class LazyGrammar(Grammar):
    """A compiled grammar and the free text before it.  Thread-safe."""

    def __init__(self, free: Grammar, body: Grammar, triggers: Sequence[Trigger], token_bytes: Sequence[bytes]) -> None:
        """Create a grammar.  RequestError if it does not accept one of its triggers."""
        self._free, self._body, self._triggers, self._shown = free, body, triggers, token_bytes
        for trigger in triggers:
            try:
                begun(body, trigger)
            except RequestError:
                text = trigger.text.decode("utf-8", "replace")
                raise RequestError(f"[grammar] no answer begins with the trigger {text!r:.80}") from None

    def matcher(self) -> LazyMatcher:
        """Return a matcher at the beginning."""
        return LazyMatcher(self._free.matcher(), self._body, self._triggers, self._shown)


def begun(body: Grammar, trigger: Trigger) -> Matcher:
    """Return a matcher behind a trigger.  RequestError if the grammar does not accept it."""
    matcher = body.matcher()
    for token in trigger.ids:
        matcher.advance(token)
    return matcher


class LazyMatcher(Matcher):
    """The position of one answer: in the free text, or in the grammar once a trigger has come."""

    def __init__(self, free: Matcher, body: Grammar, triggers: Sequence[Trigger], token_bytes: Sequence[bytes]) -> None:
        self._free, self._grammar, self._triggers, self._shown = free, body, triggers, token_bytes
        self._longest = max(len(trigger.text) for trigger in triggers)
        self._tokens: list[int] = []
        self._body: Matcher | None = None
        self._begin = 0  # tokens before the body
        self._n_before = 0  # ids of the trigger, which the body has consumed

    @property
    def _part(self) -> Matcher:
        return self._free if self._body is None else self._body

    def advance(self, token: int) -> None:
        """Consume a token.  RequestError if the grammar is too complex to follow."""
        self._part.advance(token)
        self._tokens.append(token)
        if self._body is not None or (trigger := self._ended_by()) is None:
            return
        self._body, self._begin, self._n_before = begun(self._grammar, trigger), len(self._tokens), len(trigger.ids)

    def _ended_by(self) -> Trigger | None:
        """Return the longest trigger with which the text ends."""
        tail, at = b"", len(self._tokens)
        while at and len(tail) < self._longest:
            at -= 1
            tail = self._shown[self._tokens[at]] + tail
        found = [trigger for trigger in self._triggers if tail.endswith(trigger.text)]
        return max(found, key=lambda trigger: len(trigger.text), default=None)

    def _cut(self, n: int) -> None:
        del self._tokens[n:]
        if self._body is not None and n >= self._begin:
            self._body._cut(self._n_before + n - self._begin)
        else:
            self._body = None
            self._free._cut(n)

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Write the mask of the tokens that may come next.  Raises as ``Matcher.fill``."""
        self._part.fill(mask)

    @property
    def is_complete(self) -> bool:
        """True if the answer may end here."""
        return self._part.is_complete
