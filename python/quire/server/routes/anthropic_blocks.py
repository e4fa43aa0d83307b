"""Convert messages, blocks and tools of Anthropic's API to the format of templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..failures import ApiError, brief
from ..listener.request_context import RequestContext
from .known_fields import check_blocks, check_fields, leave_out
from .text_parts import Shown, content_of, image_part, is_media

__all__ = ["Conversation", "check_blocks_of", "check_tools", "refuse", "tool_choice_of", "tools_of"]

LeftOut: TypeAlias = Callable[[str], None]

# cache_control and the other fields about caching or the meaning of results are accepted without effect: every prompt
# is cached anyway.
_BLOCKS = {
    "text": ("type", "text", "cache_control", "citations"),
    "thinking": ("type", "thinking", "signature", "cache_control"),
    "tool_use": ("type", "id", "name", "input", "cache_control", "caller"),
    "tool_result": ("type", "tool_use_id", "content", "is_error", "cache_control"),
}
_TOOL = ("type", "name", "description", "input_schema", "strict", "cache_control")
_CHOICE = ("type", "name", "disable_parallel_tool_use")
_WORDS = {str: "text", dict: "an object", bool: "true or false"}


def refuse(place: str, what: str) -> ApiError:
    """The error for an invalid field."""
    return ApiError(400, "invalid_value", f"{place}: {what}", place)


def check_blocks_of(system: Any, messages: list[dict[str, Any]], context: RequestContext[Any]) -> None:
    """Note unknown fields of messages and blocks; ApiError 400 if the server is strict."""
    check_blocks(system, _BLOCKS, "system", context)
    for i, message in enumerate(messages):
        check_fields(message, ("role", "content"), f"messages[{i}]", context)
        check_blocks(message.get("content"), _BLOCKS, f"messages[{i}].content", context)


def check_tools(tools: list[dict[str, Any]], choice: Any, context: RequestContext[Any]) -> None:
    """Note unknown fields of tools and of the choice of them; ApiError 400 if the server is strict."""
    for i, tool in enumerate(tools):
        if _is_custom(tool):
            check_fields(tool, _TOOL, f"tools[{i}]", context)
    check_fields(choice, _CHOICE, "tool_choice", context)


class Conversation:
    """Converts messages for a template.

    ``left_out`` receives the place of each block that the template cannot show.  ``takes_urls``: images may be URLs.
    """

    def __init__(self, left_out: LeftOut, *, takes_urls: bool = False) -> None:
        self._left_out, self._takes_urls = left_out, takes_urls

    def messages(self, system: Any, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the whole conversation.  ApiError 400 names an invalid field."""
        messages: list[dict[str, Any]] = []
        if system:
            messages.append({"role": "system", "content": self._content(system, "system")})
        for i, message in enumerate(given):
            messages += self._message(message, f"messages[{i}]")
        return messages

    def _message(self, message: dict[str, Any], place: str) -> list[dict[str, Any]]:
        """Convert a message; tool results become messages of their own."""
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise refuse(f"{place}.role", "expected user or assistant")
        if isinstance(content, str):
            return [{"role": role, "content": content}]
        if not isinstance(content, list):
            raise refuse(f"{place}.content", "expected text or a list of blocks")
        parts = _Parts(role)
        for i, block in enumerate(content):
            self._add(parts, block, f"{place}.content[{i}]")
        return parts.messages()

    def _add(self, parts: _Parts, block: Any, at: str) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        role = parts.role
        if not isinstance(kind, str):
            raise refuse(f"{at}.type", f"{brief(kind)} is not the type of a block")
        if kind == "thinking" and role == "assistant":
            parts.thoughts.append(_field(block, "thinking", str, at))
        elif kind in ("tool_use", "mcp_tool_use") and role == "assistant":
            function = {"name": _field(block, "name", str, at), "arguments": _field(block, "input", dict, at)}
            parts.calls.append({"id": _field(block, "id", str, at), "type": "function", "function": function})
        elif (kind, role) in (("tool_result", "user"), ("mcp_tool_result", "assistant")):
            parts.results.append(self._result(block, at))
        elif kind in ("thinking", "tool_use", "tool_result"):
            raise refuse(f"{at}.type", f"a message of {role} cannot have a {kind} block")
        else:
            parts.texts += self._texts(block, kind, at)

    def _result(self, block: dict[str, Any], at: str) -> dict[str, Any]:
        content = self._content(block.get("content") or "", f"{at}.content")
        return {"role": "tool", "tool_call_id": _field(block, "tool_use_id", str, at), "content": content}

    def _content(self, content: Any, place: str) -> str | list[dict[str, Any]]:
        """Return text as it is, or the texts of blocks."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise refuse(place, "expected text or a list of blocks")
        texts: list[Shown] = []
        for i, block in enumerate(content):
            kind = block.get("type") if isinstance(block, dict) else None
            if not isinstance(kind, str):
                raise refuse(f"{place}[{i}]", f"{brief(kind)} is not the type of a block")
            texts += self._texts(block, kind, f"{place}[{i}]")
        return content_of(texts)

    def _texts(self, block: dict[str, Any], kind: str, at: str) -> Sequence[Shown]:
        """Return what a block shows to the model; nothing for tools that run on Anthropic's servers."""
        if kind == "text":
            return [_field(block, "text", str, at)]
        if kind == "tool_reference":
            return [_field(block, "tool_name", str, at)]
        if kind == "search_result":
            heading = [str(block[name]) for name in ("title", "source") if isinstance(block.get(name), str)]
            shown = self._content(block.get("content") or "", f"{at}.content")
            texts = _texts_only(shown, at)
            return ["\n".join([*heading, *texts])]
        source = block.get("source")
        if kind == "image" and isinstance(source, dict) and (url := self._image_url(source, f"{at}.source")):
            return [image_part(url)]
        if kind == "document" and isinstance(source, dict) and source.get("type") in ("text", "content"):
            return self._document(block, source, at)
        if is_media(kind):
            raise refuse(at, f"unsupported block type {brief(kind)}: give text, or an image in base64")
        self._left_out(at)
        return []

    def _image_url(self, source: dict[str, Any], at: str) -> str | None:
        """Return the URL of an image; None for a kind of source that is not read."""
        if source.get("type") == "base64":
            return f"data:{_field(source, 'media_type', str, at)};base64,{_field(source, 'data', str, at)}"
        return _field(source, "url", str, at) if source.get("type") == "url" and self._takes_urls else None

    def _document(self, block: dict[str, Any], source: dict[str, Any], at: str) -> list[str]:
        """Return the text of an inline document, after its title."""
        if source["type"] == "text":
            texts = [_field(source, "data", str, f"{at}.source")]
        else:
            shown = self._content(source.get("content") or "", f"{at}.source.content")
            texts = _texts_only(shown, at)
        heading = [str(block[name]) for name in ("title", "context") if isinstance(block.get(name), str)]
        return ["\n".join([*heading, *texts])]


class _Parts:
    """The content of one message's blocks, sorted by kind."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.results: list[dict[str, Any]] = []
        self.texts: list[Shown] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages: tool results go before a user's text, and after an assistant's calls."""
        own: dict[str, Any] = {"role": self.role}
        if self.texts or not (self.calls or self.thoughts or self.results):
            own["content"] = content_of(self.texts)
        if self.thoughts:
            own["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            own["tool_calls"] = self.calls
        shown = [own] if len(own) > 1 else []
        return shown + self.results if self.role == "assistant" else self.results + shown


def _texts_only(shown: str | list[dict[str, Any]], at: str) -> list[str]:
    """Return the texts of a document's content."""
    if isinstance(shown, str):
        return [shown]
    if any("text" not in part for part in shown):
        raise refuse(at, "images inside a document are unsupported")
    return [part["text"] for part in shown]


def _field(block: dict[str, Any], name: str, kind: type, place: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        raise refuse(f"{place}.{name}", f"expected {_WORDS[kind]}")
    return value


def _is_custom(tool: dict[str, Any]) -> bool:
    """Return True if the client runs a tool by its schema.  Others run on Anthropic's servers or have no schema."""
    return tool.get("type", "custom") in ("custom", None) or "input_schema" in tool


def tools_of(tools: list[dict[str, Any]], context: RequestContext[Any]) -> list[dict[str, Any]]:
    """Return the tools that the model can call, as functions; the others are noted as ignored."""
    made = []
    for i, tool in enumerate(tools):
        if _is_custom(tool):
            made.append(_tool(tool, f"tools[{i}]"))
        else:
            leave_out(context, f"tools[{i}]")
    return made


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    function = {"name": _field(tool, "name", str, place), "parameters": _field(tool, "input_schema", dict, place)}
    if tool.get("description") is not None:
        function["description"] = _field(tool, "description", str, place)
    if tool.get("strict") is not None:
        function["strict"] = _field(tool, "strict", bool, place)
    return {"type": "function", "function": function}


def tool_choice_of(choice: dict[str, Any]) -> Any:
    """Return a choice of tools in OpenAI's words.  ApiError 400 if it is invalid."""
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": _field(choice, "name", str, "tool_choice")}}
    if kind not in ("auto", "any", "none"):
        raise refuse("tool_choice.type", f"{brief(kind)} is unknown: expected auto, any, tool or none")
    return "required" if kind == "any" else kind
