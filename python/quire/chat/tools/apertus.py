"""Apertus: a list of ``{name: arguments}`` between ``<|tools_prefix|>`` and ``<|tools_suffix|>``."""

from __future__ import annotations

from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, checked_arguments, checked_name, items, members
from quire.chat.tools.scanner import Malformed, Scanner


class Apertus(ToolFormat):
    """Each call is an object of one member."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        raw = yield from scan.json()
        if not raw.startswith("["):
            raise Malformed
        calls = []
        for item in items(raw):
            if not item.startswith("{"):
                raise Malformed
            calls += [Call(checked_name(name), checked_arguments(value)) for name, value in members(item).items()]
        if not calls:
            raise Malformed
        yield from scan.space()
        yield from scan.end("<|tools_suffix|>")
        yield from calls


FORMAT = Apertus(
    name="apertus",
    starts=("<|tools_prefix|>",),
    marks=("<|tools_suffix|>",),
)
