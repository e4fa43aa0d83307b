"""LFM2: calls in Python's notation, or a JSON list, between ``<|tool_call_start|>`` and ``<|tool_call_end|>``."""

from __future__ import annotations

import re

from quire.call_syntax import CallSyntax, Notation
from quire.chat.tools.calls import Steps, ToolFormat, Tools, Unfinished
from quire.chat.tools.json_calls import call_of_json, items, started_calls
from quire.chat.tools.pythonic import calls_of_python, started_python_calls
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, strict_json

_IS_JSON = re.compile(r"(\[\s*)?\{")
_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"


class Lfm2(ToolFormat):
    """The list stands alone between its marks."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        try:
            text, _ = yield from scan.until(_END)
        except CutOff as cut:
            text = cut.text.strip()
            raise Unfinished((started_calls if _IS_JSON.match(text) else started_python_calls)(text)) from None
        text = text.strip()
        if not _IS_JSON.match(text):
            yield from calls_of_python(text)
            return
        strict_json(text)
        calls = [call_of_json(item) for item in (items(text) if text.startswith("[") else [text])]
        if not calls:
            raise Malformed
        yield from calls


FORMAT = Lfm2(
    name="lfm2",
    starts=(_START,),
    marks=(_END,),
    hints=((_START,), ("<|tool_list_start|>", "<|tool_list_end|>"), ("List of tools: [", "<|im_start|>")),
    syntaxes=(
        CallSyntax(
            "{name}({arguments})",
            "<|tool_call_start|>[",
            "]<|tool_call_end|>",
            separator=", ",
            trigger="<|tool_call_start|>",
            notation=Notation.PYTHON,
        ),
    ),
)
