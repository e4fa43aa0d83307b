"""Parse an answer in a wire format while it arrives."""

from __future__ import annotations

from collections.abc import Iterator

from quire.chat.tools.calls import Call, Kind, Steps, Text, ToolFormat, Tools, Unfinished
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, TrailingSpace

__all__ = ["ToolParser"]


class ToolParser:
    """Parses an answer in pieces into text, and calls once they are complete.

    A call is returned whole, because only then is it known to be one.  Malformed calls become content, with every
    character.  White space next to a call belongs to the format.
    """

    def __init__(self, format: ToolFormat, tools: Tools | None) -> None:
        """Create a parser.  With ``tools`` None there is nothing to call, so calls are content."""
        self._format = format
        self._tools = tools or Tools()
        self._has_tools = tools is not None
        self._scan = Scanner()
        self._reader = format.begin(self._scan, self._tools)
        self._space = TrailingSpace()
        self._follows_call = False
        self._begins_line = True
        self._marks = (*format.starts, *(mark for mark in format.closers if mark not in format.starts))

    def feed(self, text: str) -> list[Call | Text]:
        """Parse more of the answer; return the new parts."""
        self._scan.feed(text)
        return list(self._parts())

    def finish(self, cut: bool = False) -> list[Call | Text]:
        """End the answer; return the remaining parts.

        If it was ``cut`` by its length, a partial call is returned and the beginning of a mark is dropped.
        """
        left = self._cut() if cut else []
        self._scan.close()
        left += self._parts()
        space = self._space.pop()
        if space and not self._follows_call:
            left.append(Text(Kind.CONTENT, space))
        return left

    @property
    def n_held(self) -> int:
        """The number of characters that arrived but are still undecided."""
        return self._scan.n_left

    def _parts(self) -> Iterator[Call | Text]:
        """Yield the parts of the text that are decided."""
        while True:
            if self._reader is None:
                text, start = self._scan.piece(self._marks if self._follows_call else self._format.starts)
                self._scan.commit(start or "")
                yield from self._spaced(text)
                if not start:
                    return
                if start not in self._format.starts:
                    yield from self._closer(self._scan.commit())
                    continue
                # The start stays undecided: it is content if no call follows.
                self._reader = self._format.read(self._scan, start, self._tools)
            part = self._next_part(self._reader)
            if part is None:
                if self._reader is not None:
                    return
            else:
                yield from self._shown(part)

    def _shown(self, part: Call | Text) -> Iterator[Call | Text]:
        """Yield a part that was read.  Held text is shown before more content and dropped before a call."""
        if isinstance(part, Call):
            self._space.pop()
            self._follows_call = True
            yield part
        elif part.kind is Kind.CONTENT:
            yield from self._spaced(part.text)
        else:
            yield part

    def _closer(self, mark: str) -> Iterator[Text]:
        """Handle a mark that ends calls.  Directly after a call it is superfluous and dropped."""
        if self._follows_call:
            self._space.pop()
        else:
            yield from self._spaced(mark)

    def _cut(self) -> list[Call | Text]:
        """Return a partial call, if there is one, and drop its text or that of a mark."""
        reader, self._reader = self._reader, None
        if reader is None:
            return [] if self._is_prose() else self._dropped([])
        try:
            part = reader.throw(CutOff())
            while part is None:
                part = reader.throw(CutOff())
        except CutOff as cut:
            return self._dropped(cut.calls if isinstance(cut, Unfinished) else [])
        except Malformed:
            return [*self._spaced(self._scan.commit())]
        except StopIteration:
            self._scan.commit()
            return [*self._parts(), *self._cut()]
        # The call was complete and the reader looked further: the text after it counts as well.
        self._reader = reader
        taken = self._scan.commit()
        if isinstance(part, Call) and not self._has_tools:
            part = Text(Kind.CONTENT, taken)
        return [*self._shown(part), *self._parts(), *self._cut()]

    def _is_prose(self) -> bool:
        """Return whether held text, which may begin a mark, begins a word within a line."""
        return self._scan.peek().isalpha() and not self._begins_line

    def _dropped(self, calls: list[Call]) -> list[Call | Text]:
        """Return the calls in place of their text."""
        text = self._scan.commit() + self._scan.drop()
        if calls and not self._has_tools:
            return [*self._spaced(text)]
        if calls or text:
            self._space.pop()
        return [*calls]

    def _next_part(self, reader: Steps) -> Call | Text | None:
        """Return the reader's next part, or None if it waits or has ended."""
        try:
            part = next(reader)
        except StopIteration:
            self._scan.commit()
            self._reader = None
            return None
        except Malformed:
            self._reader = None
            return self._refused(self._scan.commit())
        if part is not None:
            taken = self._scan.commit()
            if isinstance(part, Call) and not self._has_tools:
                return Text(Kind.CONTENT, taken)
        return part

    def _refused(self, text: str) -> Text:
        """Return text that turned out not to be a call.  A start mark alone is held back, and dropped beside a call."""
        if text.strip() in self._format.starts:
            self._space.hold(text)
            return Text(Kind.CONTENT, "")
        return Text(Kind.CONTENT, text)

    def _spaced(self, text: str) -> Iterator[Text]:
        """Yield content without white space at its end, which may precede a call."""
        shown = self._space.push(text)
        self._begins_line = text.endswith("\n") if text else self._begins_line
        if shown:
            self._follows_call = False
            yield Text(Kind.CONTENT, shown)
