"""Calls that are JSON between marks, used by many formats."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, pending
from quire.chat.tools.json_calls import KEYS, JsonKeys, json_list
from quire.chat.tools.scanner import Scanner

__all__ = ["TaggedJson"]

_SURPLUS = re.compile(r"[}\]\s]*")


@dataclass(frozen=True)
class TaggedJson(ToolFormat):
    """Parses ``start {...} end`` or ``start [{...}, ...] end``.  ``ends`` has the end of each start, empty for none."""

    ends: tuple[str, ...] = ()
    keys: JsonKeys = KEYS

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        end = self.ends[self.starts.index(start)]
        calls: list[Call] = []
        with pending(calls):
            calls += yield from json_list(scan, self.keys)
            if end:
                yield from scan.space()
                while (yield from scan.next_of("{", "[")) is not None:
                    calls += yield from json_list(scan, self.keys)
                    yield from scan.space()
                yield from scan.run(_SURPLUS)
                # Some models write the start instead of the end.
                if (yield from scan.next_of(start)) is None:
                    yield from scan.end(end)
        yield from calls

    @property
    def closers(self) -> tuple[str, ...]:
        return tuple(filter(None, self.ends))

    @property
    def visible(self) -> tuple[str, ...]:
        return self.starts + self.ends + self.marks
