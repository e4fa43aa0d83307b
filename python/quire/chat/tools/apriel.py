"""Apriel: a JSON list between ``<tool_calls>`` tags.  MiniMax-M1: objects there, one to a line."""

from __future__ import annotations

from quire.chat.tools.call_syntax import JSON_CALL, CallSyntax
from quire.chat.tools.tagged_json import TaggedJson

_START, _END = "<tool_calls>", "</tool_calls>"

FORMAT = TaggedJson(
    name="apriel",
    starts=(_START,),
    ends=(_END,),
    hints=((_START, _END),),
    syntaxes=(
        CallSyntax(JSON_CALL, f"{_START}[", f"]{_END}", separator=", ", trigger=_START, hint=f"{_START}["),
        CallSyntax(f"{JSON_CALL}\n", f"{_START}\n", _END, separator="", trigger=_START),
    ),
)
