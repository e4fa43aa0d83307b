"""The forms in which a conversation can be handed to a template, where not every template takes what clients send.

The first is what transformers hands over.  Parts of text are joined for roles whose messages a template does not take
as lists, and arguments of calls are JSON text for templates that join them to their text: both are found by rendering
a small conversation, once for each template.  What is still refused is tried with other forms of what is absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal

from quire.chat.messages import Json, plain
from quire.errors import CapacityError, QuireError

__all__ = ["Chat", "Form", "Forms"]

Chat = list[dict[str, Json]]
Gap = Literal["absent", "empty", "none"]
GAPS: tuple[Gap, ...] = ("absent", "empty", "none")
FIRST, SECOND = "quireone", "quiretwo"
PARTS: list[Json] = [{"type": "text", "text": FIRST}, {"type": "text", "text": SECOND}]
CALL: dict[str, Json] = {
    "id": "call000000",
    "type": "function",
    "function": {"name": "f", "arguments": {"probe_key": 1}},
}
USER: dict[str, Json] = {"role": "user", "content": "x"}
CALLING: dict[str, Json] = {"role": "assistant", "content": "", "tool_calls": [CALL]}


@dataclass(frozen=True)
class Form:
    """``gap``: what stands for absent content.  ``joined``: the roles whose parts are joined by line ends.
    ``text_arguments``: whether arguments of calls are JSON text; else they are objects."""

    gap: Gap = "absent"
    joined: frozenset[str] = frozenset()
    text_arguments: bool = False

    def of(self, chat: Chat) -> Chat:
        """The conversation in this form."""
        return [self._message(message) for message in chat]

    def _message(self, message: dict[str, Json]) -> dict[str, Json]:
        made = dict(message)
        content = made.get("content")
        if isinstance(content, list) and message["role"] in self.joined:
            made["content"] = "\n".join(str(part["text"]) for part in content if isinstance(part, dict))
        if "content" not in made and self.gap != "absent":
            made["content"] = "" if self.gap == "empty" else None
        calls = made.get("tool_calls")
        if isinstance(calls, list):
            made["tool_calls"] = [self._call(call) for call in calls if isinstance(call, dict)]
        return made

    def _call(self, call: dict[str, Json]) -> dict[str, Json]:
        function = call.get("function")
        if isinstance(function, dict):
            return {**call, "function": self._function(function)}
        return self._function(call)

    def _function(self, function: dict[str, Json]) -> dict[str, Json]:
        arguments = function.get("arguments")
        if arguments is None:
            return function if self.gap == "absent" else {**function, "arguments": "{}" if self.text_arguments else {}}
        if not self.text_arguments:
            return {**function, "arguments": _object_of(arguments)}
        if isinstance(arguments, str):
            return function
        return {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _object_of(arguments: Json) -> Json:
    """Clients send arguments as JSON text, too; text that is no JSON object stays as it is."""
    if isinstance(arguments, str):
        try:
            value: Json = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        if isinstance(value, dict):
            return plain(value, "arguments")
    return arguments


class Forms:
    """The forms that one template takes.  Safe from any thread."""

    def __init__(self, source: str, probe: Callable[[Chat], str]) -> None:
        """``probe`` renders a conversation; it raises QuireError where the template does not."""
        self._source = source
        self._probe = probe
        self._takes_parts: dict[str, bool] = {}

    def of(self, chat: Chat) -> Iterator[Form]:
        """The forms to try for a conversation, best first."""
        listed = {str(message["role"]) for message in chat if isinstance(message.get("content"), list)}
        joined = frozenset(role for role in listed if not self._takes(role))
        functions = list(_functions(chat))
        has_arguments = any(function.get("arguments") is not None for function in functions)
        has_gaps = any("content" not in message for message in chat) or any(
            function.get("arguments") is None for function in functions
        )
        as_text = has_arguments and self.wants_text_arguments
        choices = product(
            [joined, frozenset(listed)] if joined != listed else [joined],
            [as_text, not as_text] if has_arguments else [as_text],
            GAPS if has_gaps else GAPS[:1],
        )
        return (Form(gap, roles, text) for roles, text, gap in choices)

    def _takes(self, role: str) -> bool:
        if role not in self._takes_parts:
            self._takes_parts[role] = self._shows_parts(role)
        return self._takes_parts[role]

    def _shows_parts(self, role: str) -> bool:
        """Whether a list of two parts of text is shown by the template as their texts."""
        try:
            shown = self._probe(Form("empty", text_arguments=self.wants_text_arguments).of(_around(role, PARTS)))
        except CapacityError:
            raise
        except QuireError:
            return False
        return FIRST in shown and SECOND in shown and "'text': " not in shown

    @cached_property
    def wants_text_arguments(self) -> bool:
        """Whether the template joins the arguments of calls to its text as they are, so that they must be JSON text;
        most take objects."""
        if "arguments" not in self._source:
            return False
        chat = [USER, CALLING]
        try:
            shown = self._probe(chat)
        except CapacityError:
            raise
        except QuireError:
            shown = "{'probe_key'"
        if "{'probe_key'" not in shown:
            return False
        try:
            return '"probe_key"' in self._probe(Form(text_arguments=True).of(chat))
        except QuireError:
            return False


def _around(role: str, content: Json) -> Chat:
    """A conversation with a message of a role."""
    message: dict[str, Json] = {"role": role, "content": content}
    if role == "user":
        return [message]
    if role in ("system", "developer"):
        return [message, USER]
    if role == "assistant":
        return [USER, message, USER]
    return [USER, CALLING, {**message, "name": "f", "tool_call_id": CALL["id"]}]


def _functions(chat: Chat) -> Iterator[Mapping[str, Json]]:
    for message in chat:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            assert isinstance(call, dict)
            function = call.get("function", call)
            assert isinstance(function, dict)
            yield function
