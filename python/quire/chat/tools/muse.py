"""Muse: each message of a turn names its recipient, ``to=self`` for reasoning, ``to=tool`` for ``invoke`` tags."""

from __future__ import annotations

import re

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Kind, Steps, ToolFormat, Tools, stream
from quire.chat.tools.invoke_xml import read_invocations
from quire.chat.tools.scanner import Malformed, Scanner

_START, _MESSAGE, _END, _LAST = "<|start|>assistant", "<|message|>", "<|eom|>", "<|eot|>"
_CALLS, _CALLS_END, _PREFIX = "<atem:function_calls>", "</atem:function_calls>", "atem:"
_HEADER = re.compile(r"[^<\r\n]*")


class Muse(ToolFormat):
    """Parses messages; the prompt ends with ``<|start|>assistant``."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return _messages(scan, tools)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == _CALLS:
            yield from read_invocations(scan, tools, _PREFIX, _CALLS_END, (_END, _LAST, _START))
        else:
            yield from _messages(scan, tools)


def _messages(scan: Scanner, tools: Tools) -> Steps:
    while True:
        header = (yield from scan.run(_HEADER)).strip()
        yield from scan.literal(_MESSAGE)
        if header not in ("", "to=user") and not header.startswith("to="):
            raise Malformed
        kind = Kind.REASONING if header == "to=self" else Kind.CONTENT
        marks = (_END, _LAST) if kind is Kind.REASONING else (_END, _LAST, _CALLS)
        end = yield from stream(scan, kind, *marks)
        if end == _CALLS:
            yield from read_invocations(scan, tools, _PREFIX, _CALLS_END, (_END, _LAST, _START))
            end = (yield from scan.optional(_END, _LAST)) or ""
        if end != _END or (yield from scan.optional(_START)) is None:
            return


FORMAT = Muse(
    name="muse",
    starts=(_CALLS, _START),
    marks=("<|start|>", _MESSAGE, _END, _LAST),
    frames_content=True,
    hints=(("atem:function_calls",),),
    syntaxes=(
        CallSyntax(
            ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n{arguments}</atem:invoke>\n'
            "</atem:function_calls>",
            separator="<|eom|><|start|>assistant",
            content=(" to=user<|message|>", ""),
            joint="<|eom|><|start|>assistant",
            reasoning=(" to=self<|message|>", "<|eom|><|start|>assistant"),
            argument='<atem:parameter name="{key}">{value}</atem:parameter>\n',
        ),
    ),
)
