"""Command R: a JSON list between ``<|START_ACTION|>`` and ``<|END_ACTION|>``; answers have marks, too.

The first Command R models write ``Action:`` and a fenced list, on one line or on several.
"""

from __future__ import annotations

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Kind, Steps, ToolFormat, Tools, pending, stream
from quire.chat.tools.json_calls import JsonKeys, json_list
from quire.chat.tools.scanner import Scanner

# Their numbers restart in every turn, so they are not ids.
_KEYS = JsonKeys(name=("tool_name", "name"), arguments=("parameters", "arguments"), id=())
_ACTION = "Action:"
_ANSWERS = {"<|START_RESPONSE|>": "<|END_RESPONSE|>", "<|START_TEXT|>": "<|END_TEXT|>"}


class CommandR(ToolFormat):
    """Parses calls, and drops the marks around plain answers."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start in _ANSWERS:
            yield from stream(scan, Kind.CONTENT, _ANSWERS[start])
            return
        if start == _ACTION:
            yield from scan.space()
            yield from scan.literal("```json")
        calls = yield from json_list(scan, _KEYS)
        with pending(calls):
            yield from scan.space()
            yield from scan.end("```" if start == _ACTION else "<|END_ACTION|>")
        yield from calls

    @property
    def closers(self) -> tuple[str, ...]:
        return ("<|END_ACTION|>",)


FORMAT = CommandR(
    name="command_r",
    starts=("<|START_ACTION|>", _ACTION, *_ANSWERS),
    marks=("<|END_ACTION|>", *_ANSWERS.values()),
    frames_content=True,
    hints=(("<|START_ACTION|>",), ("Action:", "<|CHATBOT_TOKEN|>")),
    syntaxes=(
        CallSyntax(
            '{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}',
            "<|START_ACTION|>[{space}",
            "{space}]<|END_ACTION|>",
            separator=",{space}",
            content=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            hint="<|START_RESPONSE|>",
        ),
        CallSyntax(
            '{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}',
            "<|START_ACTION|>[{space}",
            "{space}]<|END_ACTION|>",
            separator=",{space}",
            content=("<|START_TEXT|>", "<|END_TEXT|>"),
            hint="<|START_TEXT|>",
        ),
        CallSyntax(
            '{{space}"tool_name": "{name}",{space}"parameters": {arguments}{space}}',
            "Action:{space}```json\n[{space}",
            "{space}]```",
            separator=",{space}",
            content=("", ""),
        ),
    ),
)
