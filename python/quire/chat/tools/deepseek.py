"""DeepSeek V3 and R1 (a fenced JSON object after type and name) and V3.1 (after the name)."""

from __future__ import annotations

import re

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, checked_name, marked_calls, name_of, pending
from quire.chat.tools.json_calls import json_arguments
from quire.chat.tools.scanner import Malformed, Scanner, Wait

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_LINE = re.compile(r"[^\r\n<`{]*")


class DeepSeek(ToolFormat):
    """Parses calls with marks around each and around all of them."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == _CALLS:
            yield from scan.space()
            yield from scan.literal(_CALL)
        yield from marked_calls(scan, _call, _CALL, _CALLS_END if start == _CALLS else None)

    @property
    def closers(self) -> tuple[str, ...]:
        return (_CALL_END, _CALLS_END)


def _call(scan: Scanner) -> Wait[Call]:
    name = yield from name_of(scan)
    yield from scan.literal(_SEPARATOR)
    yield from scan.space()
    if (yield from scan.next_of("{")) is not None:
        call = yield from json_arguments(scan, name)
    elif name != "function":  # the type of the call
        raise Malformed
    else:
        name = checked_name((yield from scan.run(_LINE)).strip())
        yield from scan.space()
        yield from scan.literal("```json")
        call = yield from json_arguments(scan, name)
        with pending([call]):
            yield from scan.space()
            yield from scan.literal("```")
    with pending([call]):
        yield from scan.space()
        yield from scan.end(_CALL_END)
    return call


FORMAT = DeepSeek(
    name="deepseek",
    starts=(_CALLS, _CALL),
    marks=(_CALLS_END, _CALL_END, _SEPARATOR),
    hints=(("<｜tool▁calls▁begin｜>",),),
    syntaxes=(
        CallSyntax(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            separator="\n",
            trigger="<｜tool▁calls▁begin｜>",
            hint="```json",
        ),
        CallSyntax(
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            separator="",
            trigger="<｜tool▁calls▁begin｜>",
        ),
    ),
)
