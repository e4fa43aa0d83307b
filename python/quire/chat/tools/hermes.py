"""Hermes, Qwen 2.5 and 3, Granite 4, and most fine-tunes: JSON between ``<tool_call>`` tags, one call each."""

from __future__ import annotations

from quire.chat.tools.call_syntax import JSON_CALL, CallSyntax
from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="hermes",
    starts=("<tool_call>",),
    ends=("</tool_call>",),
    hints=(("<tool_call>", "</tool_call>", "arguments"),),
    syntaxes=(CallSyntax(f"<tool_call>\n{JSON_CALL}\n</tool_call>", separator="{space}", trigger="<tool_call>"),),
)
