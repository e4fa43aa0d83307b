"""Phi-4-mini: a JSON list between ``<|tool_call|>`` marks, or after the word ``functools``."""

from __future__ import annotations

from quire.chat.tools.call_syntax import JSON_CALL, CallSyntax
from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="phi4",
    starts=("<|tool_call|>", "functools"),
    ends=("<|/tool_call|>", ""),
    hints=(("<|tool_call|>", "<|/tool_call|>"), ("functools",), ("<|tool|>", "<|/tool|>")),
    syntaxes=(
        CallSyntax(JSON_CALL, "<|tool_call|>[", "]<|/tool_call|>", ", ", "<|tool_call|>", hint="<|/tool_call|>"),
        CallSyntax(JSON_CALL, "functools[", "]", separator=", ", trigger="functools"),
    ),
)
