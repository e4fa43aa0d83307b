"""Adapt the form of a conversation to a template, because not every template accepts what clients send.

The first form is what the client sent.  Text parts are joined for roles whose messages a template does not accept as
lists, arguments of calls are JSON text for templates that join them to their text, and ids of calls are short for
templates that require it.  All this is found by rendering a small conversation, once for each template.  If a template
still refuses, other forms of absent content are tried.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal, TypeAlias

from quire.chat.call_arguments import arguments_object, arguments_text
from quire.chat.messages import Json
from quire.chat.turns import Chat
from quire.errors import CapacityError, QuireError

__all__ = ["Form", "Forms", "Probe", "Tools"]

Tools: TypeAlias = "list[dict[str, Json]] | None"
Probe: TypeAlias = Callable[[Chat, Tools], str]
Gap = Literal["given", "none", "absent", "empty"]
GAPS: tuple[Gap, ...] = ("given", "none", "absent", "empty")
SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
FOREIGN_ID = "toolu_01Quire-Foreign"
FIRST, SECOND = "quireone", "quiretwo"
PARTS: list[Json] = [{"type": "text", "text": FIRST}, {"type": "text", "text": SECOND}]
CALL: dict[str, Json] = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "f", "arguments": {"probe_key": 1}},
}
USER: dict[str, Json] = {"role": "user", "content": "x"}
CALLING: dict[str, Json] = {"role": "assistant", "content": "", "tool_calls": [CALL]}


@dataclass(frozen=True)
class Form:
    """A form of messages.

    Attributes:
        gap: What stands for content that is absent or null; ``"given"``: what the client sent.
        joined: The roles whose parts are joined by line ends.
        text_arguments: Whether arguments of calls are JSON text; else they are objects.
        short_ids: Whether ids of calls are nine letters and digits.
        parted: The roles whose text is a list of parts.
    """

    gap: Gap = "given"
    joined: frozenset[str] = frozenset()
    text_arguments: bool = False
    short_ids: bool = False
    parted: frozenset[str] = frozenset()

    def of(self, chat: Chat) -> Chat:
        """Return the conversation in this form."""
        return [self._message(message) for message in chat]

    def _message(self, message: dict[str, Json]) -> dict[str, Json]:
        made = dict(message)
        content = made.get("content")
        if isinstance(content, list) and message["role"] in self.joined:
            made["content"] = "\n".join(str(part["text"]) for part in content if isinstance(part, dict))
        if isinstance(content, str) and message["role"] in self.parted:
            made["content"] = [{"type": "text", "text": content}]
        if content is None and self.gap != "given":
            made.pop("content", None)
            if self.gap != "absent":
                made["content"] = "" if self.gap == "empty" else None
        if self.short_ids and isinstance(made.get("tool_call_id"), str):
            made["tool_call_id"] = _short_id(str(made["tool_call_id"]))
        calls = made.get("tool_calls")
        if isinstance(calls, list):
            made["tool_calls"] = [self._call(call) for call in calls if isinstance(call, dict)]
        return made

    def _call(self, call: dict[str, Json]) -> dict[str, Json]:
        if self.short_ids:
            call = {**call, "id": _short_id(str(call.get("id")))}
        function = call.get("function")
        if isinstance(function, dict):
            return {**call, "function": self._function(function)}
        return self._function(call)

    def _function(self, function: dict[str, Json]) -> dict[str, Json]:
        arguments = function.get("arguments")
        return {
            **function,
            "arguments": arguments_text(arguments) if self.text_arguments else arguments_object(arguments),
        }


def _short_id(id: str) -> str:
    """Shorten an id, always in the same way, so that results match their calls and prompts stay cached."""
    return id if SHORT_ID.fullmatch(id) else hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:9]


class Forms:
    """The forms that one template accepts.  Thread-safe."""

    def __init__(self, source: str, probe: Probe) -> None:
        """Create it with ``probe``, which renders a conversation or raises QuireError if the template refuses."""
        self._source = source
        self._probe_with = probe
        self._takes_parts: dict[str, bool] = {}
        self._parted: dict[str, bool] = {}

    def of(self, chat: Chat) -> Iterator[Form]:
        """Return the forms to try for a conversation, best first."""
        parted = frozenset(role for role in {str(message["role"]) for message in chat} if self._wants_parts(role))
        listed = {str(message["role"]) for message in chat if isinstance(message.get("content"), list)}
        joined = frozenset(role for role in listed - parted if not self._takes(role))
        has_calls = any(message.get("tool_calls") or message["role"] == "tool" for message in chat)
        has_gaps = any(message.get("content") is None for message in chat)
        as_text = has_calls and self.wants_text_arguments
        short = has_calls and self.wants_short_ids
        choices = product(
            [joined, frozenset(listed)] if joined != listed else [joined],
            [as_text, not as_text] if has_calls else [as_text],
            GAPS if has_gaps else GAPS[:1],
        )
        return (Form(gap, roles, text, short, parted) for roles, text, gap in choices)

    @cached_property
    def without_tools(self) -> Tools:
        """The value that stands for no tools: None, or an empty list for a template that needs one."""
        choices: tuple[Tools, ...] = (None, [])
        for tools in choices:
            try:
                self._probe_with([USER], tools)
            except QuireError:
                continue
            return tools
        return None

    def _probe(self, chat: Chat) -> str:
        return self._probe_with(chat, self.without_tools)

    def _takes(self, role: str) -> bool:
        if role not in self._takes_parts:
            self._takes_parts[role] = self._shows_parts(role)
        return self._takes_parts[role]

    def _shows_parts(self, role: str) -> bool:
        """Return whether the template shows a list of two text parts as their texts."""
        try:
            shown = self._probe(Form("empty", text_arguments=self.wants_text_arguments).of(_around(role, PARTS)))
        except CapacityError:
            raise
        except QuireError:
            return False
        return _shows_both(shown)

    def _wants_parts(self, role: str) -> bool:
        """Return whether the template shows a list of parts but not plain text.

        Few templates do, so the other roles are only probed if the user's messages need it.
        """
        if role not in self._parted:
            wants = role == "user" or self._wants_parts("user")
            self._parted[role] = wants and not self._shows_text(role) and self._shows_parts(role)
        return self._parted[role]

    def _shows_text(self, role: str) -> bool:
        try:
            return FIRST in self._probe(Form("empty").of(_around(role, FIRST)))
        except QuireError:
            return False

    @cached_property
    def wants_short_ids(self) -> bool:
        """Return whether the template refuses call ids other than nine letters and digits."""
        if "tool_call" not in self._source:
            return False
        refused = []
        for id in (FOREIGN_ID, "call00000"):
            result: dict[str, Json] = {"role": "tool", "name": "f", "tool_call_id": id, "content": "x"}
            chat: Chat = [USER, {**CALLING, "tool_calls": [{**CALL, "id": id}]}, result]
            try:
                self._probe(Form(text_arguments=self.wants_text_arguments).of(chat))
            except QuireError:
                refused.append(id)
        return refused == [FOREIGN_ID]

    @cached_property
    def wants_text_arguments(self) -> bool:
        """Return whether the template inserts the arguments of calls unchanged, so that they must be JSON text.

        Most templates take objects.
        """
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


def _shows_both(rendering: str) -> bool:
    """Return whether a rendering has the texts of both parts, other than as a printed Python list."""
    return FIRST in rendering and SECOND in rendering and "'text': " not in rendering


def _around(role: str, content: Json) -> Chat:
    """Return a conversation with a message of a role."""
    message: dict[str, Json] = {"role": role, "content": content}
    if role == "user":
        return [message]
    if role in ("system", "developer"):
        return [message, USER]
    if role == "assistant":
        return [USER, message, USER]
    return [USER, CALLING, {**message, "name": "f", "tool_call_id": CALL["id"]}]
