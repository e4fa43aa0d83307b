"""Kimi K2: a section of calls, each with an id that holds the name (``functions.name:0``) and a JSON object."""

from __future__ import annotations

import re

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, checked_name, marked_calls, name_of, pending
from quire.chat.tools.json_calls import json_arguments
from quire.chat.tools.scanner import Scanner, Wait

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END, _ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


class KimiK2(ToolFormat):
    """Parses calls with the model's own ids, which it expects beside the results."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == _SECTION:
            yield from scan.space()
            yield from scan.literal(_CALL)
        yield from marked_calls(scan, _call, _CALL, _SECTION_END if start == _SECTION else None)

    @property
    def closers(self) -> tuple[str, ...]:
        return (_CALL_END, _SECTION_END)


def _call(scan: Scanner) -> Wait[Call]:
    yield from scan.space()
    id = yield from name_of(scan)
    match = _ID.fullmatch(id)
    assert match is not None
    yield from scan.space()
    yield from scan.literal(_ARGUMENTS)
    call = yield from json_arguments(scan, checked_name(match["name"]), id)
    with pending([call]):
        yield from scan.space()
        yield from scan.end(_CALL_END)
    return call


FORMAT = KimiK2(
    name="kimi_k2",
    starts=(_SECTION, _CALL),
    marks=(_SECTION_END, _CALL_END, _ARGUMENTS),
    hints=(("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),),
    syntaxes=(
        CallSyntax(
            "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            separator="",
            trigger="<|tool_calls_section_begin|>",
        ),
    ),
)
