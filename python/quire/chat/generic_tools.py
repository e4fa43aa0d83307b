"""Tools for templates that know none: told to the model in the system message, called and answered in Hermes' form.

The wording is Quire's own.  Calls go between the tags of the format ``hermes``, which most models have seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from quire.chat.messages import Messages, checked_messages, checked_tools
from quire.errors import RequestError

__all__ = ["FORMAT", "has_tool_turns", "with_tools_as_text"]

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


def has_tool_turns(messages: Messages) -> bool:
    """Whether a conversation has calls or results of tools."""
    return any(
        isinstance(message, Mapping) and (message.get("role") == "tool" or message.get("tool_calls"))
        for message in messages
    )


def with_tools_as_text(
    messages: Messages, tools: Sequence[Mapping[str, object]] | None, *, system: bool
) -> list[dict[str, object]]:
    """The conversation with tools, calls and results in its texts.

    ``system``: whether the template takes a message of the system; else the first message of the user begins with what
    the system says.  Calls, results and what the user says after them keep the turns of user and assistant in order.
    RequestError for messages or tools that do not hold.
    """
    made: list[dict[str, object]] = []
    for message in checked_messages(messages):
        role, text = str(message.get("role")), _text(message.get("content"))
        if role == "tool":
            role, text = "user", f"<tool_response>\n{text}\n</tool_response>"
        calls = message.get("tool_calls")
        if role == "assistant" and isinstance(calls, list) and calls:
            text = "\n".join([*([text] if text else []), *map(_call, calls)])
        if made and made[-1]["role"] == role == "user":
            made[-1]["content"] = f"{made[-1]['content']}\n{text}"
        else:
            kept = {name: value for name, value in message.items() if name == "reasoning_content"}
            made.append({"role": role, **kept, "content": text})
    definitions = checked_tools(tools)
    if not definitions:
        return made
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in definitions)
    told = _INTRODUCTION.format(definitions=lines)
    if made[0]["role"] == "system":
        told = f"{made.pop(0)['content']}\n\n{told}"
    if system:
        return [{"role": "system", "content": told}, *made]
    first = next((message for message in made if message["role"] == "user"), None)
    if first is None:
        raise RequestError("[chat] messages must have one of the user beside tools but have none")
    first["content"] = f"{told}\n\n{first['content']}"
    return made


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
    return content if isinstance(content, str) else ""


def _call(call: object) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise RequestError("[chat] tool_calls must have functions but one has not")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:  # one that was cut
            arguments = {"arguments": arguments}
    shown = json.dumps({"name": function.get("name"), "arguments": arguments or {}}, ensure_ascii=False)
    return f"<tool_call>\n{shown}\n</tool_call>"
