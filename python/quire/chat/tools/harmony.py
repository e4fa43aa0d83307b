"""gpt-oss (harmony): channels.

``analysis`` is reasoning, ``final`` and ``commentary`` are content, and a message with a recipient is a call.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Kind, Steps, Text, ToolFormat, Tools, checked_name, pending, stream
from quire.chat.tools.json_calls import json_arguments
from quire.chat.tools.scanner import Malformed, Scanner

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_HEADER = re.compile(r"[^<\r\n]*")
_ROLE = re.compile(r"\s*(assistant)?\s*(to=\S+)?\s*")
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")
_KINDS = {"analysis": Kind.REASONING, "commentary": Kind.CONTENT, "final": Kind.CONTENT}


class Harmony(ToolFormat):
    """Parses messages.  The prompt ends with ``<|start|>assistant``; a recipient may precede or follow a channel."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return _messages(scan, "")

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from _messages(scan, start)


def _messages(scan: Scanner, start: str) -> Steps:
    while True:
        if start != _CHANNEL:
            role = yield from scan.run(_HEADER)
            if _ROLE.fullmatch(role) is None:
                raise Malformed
            yield from scan.literal(_CHANNEL)
        else:
            role = ""
        channel = yield from scan.run(_HEADER)
        if (yield from scan.optional(_CONSTRAIN)) is not None:
            channel += " " + (yield from scan.run(_HEADER))
        yield from scan.literal(_MESSAGE)
        recipient = _RECIPIENT.search(channel) or _RECIPIENT.search(role)
        words = channel.split()
        if any("=" in word and not word.startswith("to=") for word in words):
            raise Malformed
        if recipient is not None:
            end = yield from _call(scan, recipient[1])
        elif words and words[0] in _KINDS:
            end = yield from stream(scan, _KINDS[words[0]], *_ENDS)
        else:
            raise Malformed
        if end in ("", "<|call|>", "<|return|>"):
            return
        if end == "<|end|>":
            yield from scan.space()
            following = yield from scan.optional(_START, _CHANNEL)
            if following is None:
                return
            end = following
        start = end


def _call(scan: Scanner, recipient: str) -> Generator[Call | Text | None, None, str]:
    """Take a call's arguments; return the mark after them."""
    call = yield from json_arguments(scan, checked_name(recipient.removeprefix("functions.")))
    with pending([call]):
        yield from scan.space()
        end = yield from scan.optional(*_ENDS)
        if end is None and not (yield from scan.ended()):
            raise Malformed
    yield call
    return end or ""


FORMAT = Harmony(
    name="harmony",
    starts=(_CHANNEL, _START),
    marks=(_MESSAGE, _CONSTRAIN, "<|end|>", "<|call|>", "<|return|>"),
    frames_content=True,
    hints=(("<|channel|>", "<|message|>", "<|start|>"),),
    syntaxes=(
        CallSyntax(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
            content=("<|channel|>final<|message|>", ""),
            reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        ),
    ),
)
