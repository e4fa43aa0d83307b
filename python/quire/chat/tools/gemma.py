"""Gemma 4 and FunctionGemma: ``call:name{key:value}`` between marks, strings between marks of their own."""

from __future__ import annotations

from quire.call_syntax import CallSyntax, Notation
from quire.chat.tools.arguments import started_arguments
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, Unfinished, name_of
from quire.chat.tools.literals import LiteralReader, beginning
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, held_back
from quire.chat.tools.values import arguments_text

_ENDS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
_STRINGS = {"<|tool_call>": '<|"|>', "<start_function_call>": "<escape>"}


class Gemma(ToolFormat):
    """Keys are words; numbers, ``true``, lists and objects are as in JSON."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from scan.literal("call:")
        name = yield from name_of(scan)
        try:
            text, _ = yield from scan.until(_ENDS[start])
        except CutOff as cut:
            raise Unfinished([_started_call(name, cut.text, _STRINGS[start])]) from None
        reader = LiteralReader(text, string_mark=_STRINGS[start], bare_keys=True)
        arguments = reader.mapping()
        reader.space()
        if reader.at != len(text):
            raise Malformed
        yield Call(name, arguments_text(arguments))


def _started_call(name: str, text: str, string_mark: str) -> Call:
    # The mark at the end of a string may be cut.
    reader = LiteralReader(text[: len(text) - held_back(text, (string_mark,))], string_mark=string_mark, bare_keys=True)
    arguments: dict[str, object] = {}
    try:
        reader.must("{")
        reader.members(arguments, ":", "}")
    except Malformed:
        started = beginning(reader, name, arguments)
        return Call(name, started_arguments(started.arguments, started.begun))
    return Call(name, arguments_text(arguments))


FORMAT = Gemma(
    name="gemma",
    starts=tuple(_ENDS),
    marks=(*_ENDS.values(), *_STRINGS.values()),
    hints=(("<|tool_call>",), ("<start_function_call>",)),
    syntaxes=(
        CallSyntax(
            "<start_function_call>call:{name}{{arguments}}<end_function_call>",
            separator="{space}",
            trigger="<start_function_call>",
            hint="<start_function_call>",
            notation=Notation.MARKED,
            string_mark="<escape>",
            end="<end_function_call>",
        ),
        CallSyntax(
            "<|tool_call>call:{name}{{arguments}}<tool_call|>",
            separator="{space}",
            trigger="<|tool_call>",
            notation=Notation.MARKED,
            string_mark='<|"|>',
            end="<tool_call|>",
        ),
    ),
)
