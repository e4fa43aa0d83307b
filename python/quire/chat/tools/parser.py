"""The parts of an answer in a wire format, as the answer comes."""

from __future__ import annotations

from collections.abc import Iterator

from quire.chat.tools.calls import Call, Kind, Steps, Text, ToolFormat, Tools, Unfinished
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, TrailingSpace

__all__ = ["ToolParser"]


class ToolParser:
    """Takes an answer in pieces and gives what it consists of: text, and calls once they are complete.

    A call is given as a whole, because only then is it known to be one: what turns out to be malformed comes back as
    content, with every character.  White space between a call and what is beside it belongs to the format.
    """

    def __init__(self, format: ToolFormat, tools: Tools | None) -> None:
        """``tools`` None: there are none to call, so that calls are content."""
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
        """What is new with more of the answer."""
        self._scan.feed(text)
        return list(self._parts())

    def finish(self, cut: bool = False) -> list[Call | Text]:
        """What is left at the answer's end.

        ``cut``: it ended because of its length, so that a call that is not whole comes as far as it goes, and the
        beginning of a mark is nothing.
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
        """Characters that arrived but cannot be told apart yet."""
        return self._scan.n_left

    def _parts(self) -> Iterator[Call | Text]:
        """What can be said of the text that arrived."""
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
                # The start is not done with: it is content if no call follows.
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
        """Handle a mark that ends calls.  Directly behind a call it is superfluous, and dropped."""
        if self._follows_call:
            self._space.pop()
        else:
            yield from self._spaced(mark)

    def _cut(self) -> list[Call | Text]:
        """What there is of a call, or of a mark; drops their text."""
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
        # The call was whole, and the reader looked further: what is behind it counts as well.
        self._reader = reader
        taken = self._scan.commit()
        if isinstance(part, Call) and not self._has_tools:
            part = Text(Kind.CONTENT, taken)
        return [*self._shown(part), *self._parts(), *self._cut()]

    def _is_prose(self) -> bool:
        """Whether what is held, because it may begin a mark, begins a word within a line."""
        return self._scan.peek().isalpha() and not self._begins_line

    def _dropped(self, calls: list[Call]) -> list[Call | Text]:
        """The calls in the place of what they were read from."""
        text = self._scan.commit() + self._scan.drop()
        if calls and not self._has_tools:
            return [*self._spaced(text)]
        if calls or text:
            self._space.pop()
        return [*calls]

    def _next_part(self, reader: Steps) -> Call | Text | None:
        """The reader's next part; None where it waits, or has ended."""
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
        """Content, but for the white space at its end, which may stand before a call."""
        shown = self._space.push(text)
        self._begins_line = text.endswith("\n") if text else self._begins_line
        if shown:
            self._follows_call = False
            yield Text(Kind.CONTENT, shown)
