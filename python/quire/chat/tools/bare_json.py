"""Models without a format: the whole answer is a JSON call or a list of calls."""

from __future__ import annotations

from quire.chat.tools.call_syntax import JSON_CALL, CallSyntax
from quire.chat.tools.calls import Steps, ToolFormat, Tools
from quire.chat.tools.json_calls import call_of_json, items, json_value
from quire.chat.tools.scanner import Malformed, Scanner


class BareJson(ToolFormat):
    """The format ``bare_json``, which is never detected, only chosen by name."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return self._answer(scan, tools)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from self._answer(scan, tools)
        yield from scan.space()
        yield from scan.end("```")

    def _answer(self, scan: Scanner, tools: Tools) -> Steps:
        raw = yield from json_value(scan, bare_names=tools.properties)
        calls = [call_of_json(part, bare=True) for part in (items(raw) if raw.startswith("[") else [raw])]
        if not calls:
            raise Malformed
        yield from calls


FORMAT = BareJson(
    name="bare_json",
    starts=("```json\n",),
    syntaxes=(CallSyntax(JSON_CALL),),
)
