"""Gemma 4 and FunctionGemma: ``call:name{key:value}`` between marks, with other marks around strings."""

from __future__ import annotations

from dataclasses import replace

from quire.chat.tools.arguments import started_arguments
from quire.chat.tools.call_reader import beginning
from quire.chat.tools.call_syntax import CallSyntax, Notation
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, Unfinished, name_of
from quire.chat.tools.literals import LiteralReader
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, held_back
from quire.chat.tools.value_ends import GoesOn, read_to_end
from quire.chat.tools.values import arguments_text

_ENDS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
_STRINGS = {"<|tool_call>": '<|"|>', "<start_function_call>": "<escape>"}


class Gemma(ToolFormat):
    """Parses calls with bare keys.  Other values are as in JSON, whose strings are accepted as well."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from scan.literal("call:")
        name = yield from name_of(scan)
        schema = tools.schemas.get(name)
        reader = LiteralReader("", string_mark=_STRINGS[start], names=() if schema is None else schema.names)
        try:
            arguments = yield from read_to_end(scan, lambda text: _arguments(replace(reader, text=text)), _ENDS[start])
        except CutOff as cut:
            raise Unfinished([_started_call(name, replace(reader, text=cut.text))]) from None
        yield Call(name, arguments_text(arguments))

    @property
    def closers(self) -> tuple[str, ...]:
        return tuple(_ENDS.values())


def _arguments(reader: LiteralReader) -> dict[str, object]:
    try:
        arguments = reader.mapping()
    except Malformed:
        if reader.is_at_end:
            raise GoesOn from None
        raise
    if not reader.is_at_end:
        raise Malformed
    return arguments


def _started_call(name: str, reader: LiteralReader) -> Call:
    # The mark at the end of a string may be cut.
    n_held = held_back(reader.text, (reader.string_mark or "",))
    reader.text = reader.text[: len(reader.text) - n_held]
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
