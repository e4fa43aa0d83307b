"""Calls that are JSON between marks, the plan of many formats."""

from __future__ import annotations

from dataclasses import dataclass

from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, pending
from quire.chat.tools.json_calls import KEYS, JsonKeys, json_list
from quire.chat.tools.scanner import Scanner

__all__ = ["TaggedJson"]


@dataclass(frozen=True)
class TaggedJson(ToolFormat):
    """``start {...} end`` or ``start [{...}, ...] end``; ``ends`` has the end of each start, empty for none."""

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
                yield from scan.end(end)
        yield from calls

    @property
    def visible(self) -> tuple[str, ...]:
        return self.starts + self.ends + self.marks
