"""Solar Open: parts with marks, ``<|think|>`` and ``<|content|>`` up to ``<|end|>``, and calls with ids."""

from __future__ import annotations

import re

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Kind, Steps, ToolFormat, Tools, marked_calls, name_of, pending, stream
from quire.chat.tools.json_calls import json_arguments
from quire.chat.tools.scanner import Scanner, Wait

_BEGIN, _END = "<|begin|>assistant", "<|end|>"
_PARTS = {"<|think|>": Kind.REASONING, "<|content|>": Kind.CONTENT}
_CALLS, _CALLS_END = "<|tool_calls|>", "<|calls|>"
_CALL, _NAME, _ARGUMENTS, _CALL_END = (f"<|tool_call:{part}|>" for part in ("begin", "name", "args", "end"))
_ID = re.compile(r"[A-Za-z0-9_-]*")


class Solar(ToolFormat):
    """Parses messages; the prompt ends with ``<|begin|>assistant``."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return _parts(scan)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == _BEGIN:
            yield from _parts(scan)
        elif start in _PARTS:
            yield from stream(scan, _PARTS[start], _END)
        else:
            yield from _calls(scan, start)

    @property
    def closers(self) -> tuple[str, ...]:
        return (_CALL_END, _CALLS_END)


def _parts(scan: Scanner) -> Steps:
    while True:
        yield from scan.space()
        mark = yield from scan.literal(*_PARTS, _CALLS)
        if mark == _CALLS:
            yield from _calls(scan, mark)
            return
        if (yield from stream(scan, _PARTS[mark], _END)) != _END:
            return
        yield from scan.space()
        if (yield from scan.optional(_BEGIN)) is None:
            return


def _calls(scan: Scanner, start: str) -> Steps:
    if start == _CALLS:
        yield from scan.space()
        yield from scan.literal(_CALL)
    yield from marked_calls(scan, _call, _CALL, _CALLS_END if start == _CALLS else None)


def _call(scan: Scanner) -> Wait[Call]:
    id = yield from scan.run(_ID)
    yield from scan.literal(_NAME)
    name = yield from name_of(scan)
    yield from scan.literal(_ARGUMENTS)
    call = yield from json_arguments(scan, name, id or None)
    with pending([call]):
        yield from scan.space()
        yield from scan.end(_CALL_END)
    return call


FORMAT = Solar(
    name="solar",
    starts=(_BEGIN, _CALLS, _CALL, *_PARTS),
    marks=("<|begin|>", _END, _CALLS_END, _NAME, _ARGUMENTS, _CALL_END),
    frames_content=True,
    hints=((_CALL, _ARGUMENTS),),
    syntaxes=(
        CallSyntax(
            f"{_CALL}{{id}}{_NAME}{{name}}{_ARGUMENTS}{{arguments}}{_CALL_END}",
            _CALLS,
            _CALLS_END,
            separator="",
            content=("<|content|>", ""),
            reasoning=("<|think|>", f"{_END}{_BEGIN}"),
        ),
    ),
)
