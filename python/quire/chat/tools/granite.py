"""Granite 3: a JSON list after ``<|tool_call|>`` (3.0) or ``<tool_call>`` (3.1 and later).  Granite 4 is Hermes."""

from __future__ import annotations

from quire.chat.tools.call_syntax import JSON_CALL, CallSyntax
from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="granite",
    starts=("<|tool_call|>", "<tool_call>"),
    ends=("", ""),
    hints=(("<|tool_call|>", "<|start_of_role|>"),),
    syntaxes=(CallSyntax(JSON_CALL, "<|tool_call|>[", "]", separator=", ", trigger="<|tool_call|>"),),
)
