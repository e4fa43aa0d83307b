"""Phi-4-mini: a JSON list between ``<|tool_call|>`` marks, or behind the word ``functools``."""

from __future__ import annotations

from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="phi4",
    starts=("<|tool_call|>", "functools"),
    ends=("<|/tool_call|>", ""),
)
