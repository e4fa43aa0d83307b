"""Hermes, Qwen 2.5 and 3, Granite 4, and most fine-tunes: JSON between ``<tool_call>`` tags, one call each."""

from __future__ import annotations

from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="hermes",
    starts=("<tool_call>",),
    ends=("</tool_call>",),
)
