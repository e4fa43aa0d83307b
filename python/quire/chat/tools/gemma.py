"""Gemma 4 and FunctionGemma: ``call:name{key:value}`` between marks, strings between marks of their own."""

from __future__ import annotations

from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of
from quire.chat.tools.literals import LiteralReader
from quire.chat.tools.scanner import Malformed, Scanner
from quire.chat.tools.values import arguments_text

_ENDS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
_STRINGS = {"<|tool_call>": '<|"|>', "<start_function_call>": "<escape>"}


class Gemma(ToolFormat):
    """Keys are words; numbers, ``true``, lists and objects are as in JSON."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from scan.literal("call:")
        name = yield from name_of(scan)
        text, _ = yield from scan.until(_ENDS[start])
        reader = LiteralReader(text, string_mark=_STRINGS[start], bare_keys=True)
        arguments = reader.mapping()
        reader.space()
        if reader.at != len(text):
            raise Malformed
        yield Call(name, arguments_text(arguments))


FORMAT = Gemma(
    name="gemma",
    starts=tuple(_ENDS),
    marks=(*_ENDS.values(), *_STRINGS.values()),
)
