"""GigaChat 3: a JSON object behind ``<|function_call|>``."""

from __future__ import annotations

from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="gigachat",
    starts=("<|function_call|>",),
    ends=("",),
)
