"""LFM2: calls in Python's notation, or a JSON list, between ``<|tool_call_start|>`` and ``<|tool_call_end|>``."""

from __future__ import annotations

import re

from quire.chat.tools.call_syntax import CallSyntax, Notation
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, Unfinished
from quire.chat.tools.json_calls import call_of_json, items, started_calls
from quire.chat.tools.pythonic import calls_of_python, started_python_calls
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, strict_json
from quire.chat.tools.value_ends import GoesOn, read_to_end

_IS_JSON = re.compile(r"(\[\s*)?\{")
_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"


class Lfm2(ToolFormat):
    """Parses the list between its marks."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from scan.space()
        if (yield from scan.next_of(_START)) is not None:
            raise Malformed  # a superfluous one
        try:
            calls = yield from read_to_end(scan, lambda text: _calls(text.strip(), tools), _END)
        except CutOff as cut:
            text = cut.text.strip()
            started = started_calls(text) if _IS_JSON.match(text) else started_python_calls(text, tools)
            raise Unfinished(started) from None
        yield from calls

    @property
    def closers(self) -> tuple[str, ...]:
        return (_END,)


def _calls(text: str, tools: Tools) -> list[Call]:
    if not _IS_JSON.match(text):
        return calls_of_python(text, tools)
    try:
        strict_json(text)
    except Malformed:
        raise GoesOn from None
    calls = [call_of_json(item) for item in (items(text) if text.startswith("[") else [text])]
    if not calls:
        raise Malformed
    return calls


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
