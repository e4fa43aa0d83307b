"""Tools for templates without tools: described in the system message, called and answered in the Hermes format.

The wording is Quire's own.  Calls go between the tags of the format ``hermes``, which most models have seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from quire.chat.messages import Json, Messages, checked_messages, checked_tools
from quire.chat.turns import calls_as_text, joined_content

__all__ = ["FORMAT", "with_tools_as_text"]

FORMAT = "hermes"
_INTRODUCTION = """You can call these functions. Each line is the definition of one as JSON:
{definitions}

To call a function, answer with a JSON object between tags, and with nothing after them. Its name is that of the
function; its arguments are an object with the properties that the definition lists:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>
Several calls follow each other. The results come in the next message between <tool_response> tags. Without need of a
function, answer in words."""


def with_tools_as_text(messages: Messages, tools: Sequence[Mapping[str, object]] | None) -> list[dict[str, Json]]:
    """Return the conversation with tools, calls and results in its texts.

    The tools are described in the leading system message.  RequestError for invalid messages or tools.
    """
    made = calls_as_text(checked_messages(messages))
    definitions = checked_tools(tools)
    if not definitions:
        return made
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in definitions)
    told = _INTRODUCTION.format(definitions=lines)
    if made[0]["role"] in ("system", "developer"):
        first = made.pop(0)
        return [{**first, "content": joined_content(first.get("content"), told)}, *made]
    return [{"role": "system", "content": told}, *made]
