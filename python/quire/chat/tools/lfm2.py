"""FORMAT: calls in Python's notation, or a JSON list, between ``<|tool_call_start|>`` and ``<|tool_call_end|>``."""

from __future__ import annotations

from quire.chat.tools.calls import Steps, ToolFormat, Tools, call_of_json, items
from quire.chat.tools.pythonic import calls_of_python
from quire.chat.tools.scanner import Malformed, Scanner, strict_json

_END = "<|tool_call_end|>"


class Lfm2(ToolFormat):
    """The list stands alone between its marks."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        text, _ = yield from scan.until(_END)
        try:
            calls = calls_of_python(text)
        except Malformed:
            text = text.strip()
            strict_json(text)
            parts = items(text) if text.startswith("[") else [text]
            calls = [call_of_json(part) for part in parts]
        if not calls:
            raise Malformed
        yield from calls


FORMAT = Lfm2(
    name="lfm2",
    starts=("<|tool_call_start|>",),
    marks=(_END,),
)
