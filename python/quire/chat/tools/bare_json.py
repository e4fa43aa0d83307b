"""Models without a format of their own: the whole answer is a JSON call, or a list of them."""

from __future__ import annotations

from quire.chat.tools.calls import Steps, ToolFormat, Tools, call_of_json, items
from quire.chat.tools.scanner import Malformed, Scanner


class BareJson(ToolFormat):
    """Never detected, only chosen by name."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return _answer(scan)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from _answer(scan)
        yield from scan.space()
        yield from scan.end("```")


def _answer(scan: Scanner) -> Steps:
    raw = yield from scan.json()
    calls = [call_of_json(part, bare=True) for part in (items(raw) if raw.startswith("[") else [raw])]
    if not calls:
        raise Malformed
    yield from calls


FORMAT = BareJson(name="bare_json", starts=("```json\n",))
