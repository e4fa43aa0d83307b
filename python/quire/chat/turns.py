"""Rearrange a conversation's turns for templates that restrict their order, without losing text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from quire.chat.call_arguments import arguments_object
from quire.chat.messages import Json

__all__ = ["Chat", "TurnPlan", "call_text", "calls_as_text", "joined_content", "plans"]

Chat: TypeAlias = "list[dict[str, Json]]"
Message: TypeAlias = "dict[str, Json]"
SystemMode = Literal["given", "renamed", "joined", "leading", "user"]
SYSTEM_ROLES = ("system", "developer")
# Stand-ins for a turn that a template requires and the conversation lacks.
GREETING, ACKNOWLEDGEMENT = "Hello.", "OK."


@dataclass(frozen=True)
class TurnPlan:
    """The changes made to the turns of a conversation.

    Attributes:
        calls: ``"given"``; ``"paired"``: one call per message, followed by its result, and results without a call as
            text of the user; ``"text"``: calls and results as text.
        alternating: Consecutive messages of one role are joined, and user and assistant alternate.
        system: ``"given"``; ``"renamed"``: developer messages become system messages; ``"joined"``: also, the leading
            ones are joined; ``"leading"``: also, later ones become marked parts of the user's turns; ``"user"``: also,
            the leading one becomes part of the user's first turn.
    """

    calls: Literal["given", "paired", "text"] = "given"
    alternating: bool = False
    system: SystemMode = "given"

    def of(self, chat: Chat) -> Chat:
        """Return the conversation by this plan; the given one is not changed."""
        if self.system != "given":
            chat = _with_systems(chat, self.system)
        if self.calls != "given":
            chat = calls_as_text(chat) if self.calls == "text" else _paired(chat)
        return _alternating(chat) if self.alternating else chat

    def moved(self, chat: Chat) -> list[str]:
        """Return the names of messages that are no longer system messages, or no longer separate."""
        if self.system in ("given", "renamed"):
            return []
        n_leading = _n_leading(chat)
        kept = 0 if self.system == "user" else 1
        ends = len(chat) if self.system != "joined" else n_leading
        return [f"messages[{i}].role" for i in range(kept if n_leading else 0, ends) if _is_system(chat[i])]


def plans() -> Iterator[TurnPlan]:
    """Yield all plans, those with the fewest changes first."""
    modes: tuple[SystemMode, ...] = ("given", "renamed", "joined", "leading", "user")
    for calls in ("given", "paired", "text"):
        for alternating in (False, True):
            for system in modes:
                yield TurnPlan(calls, alternating, system)


def _is_system(message: Message) -> bool:
    return message["role"] in SYSTEM_ROLES


def _n_leading(chat: Chat) -> int:
    return next((i for i, message in enumerate(chat) if not _is_system(message)), len(chat))


def _with_systems(chat: Chat, mode: SystemMode) -> Chat:
    chat = [{**message, "role": "system"} if _is_system(message) else message for message in chat]
    if mode == "renamed":
        return chat
    n = _n_leading(chat)
    made: Chat = []
    for message in chat[:n]:
        _append_joined(made, message, "system")
    if mode == "joined":
        return made + chat[n:]
    if mode == "user":
        made = [{"role": "user", "content": message.get("content")} for message in made]
    for i, message in enumerate(chat[n:], n):
        if _is_system(message):
            _append_system(made, message, chat[i + 1 :])
        elif made and (made[-1].get(_OPEN) or (i == n and mode == "user")) and message["role"] == "user":
            made[-1] = {**message, "content": joined_content(made[-1].get("content"), message.get("content"))}
        else:
            made.append(message)
    return [{key: value for key, value in message.items() if key != _OPEN} for message in made]


_OPEN = "quire joins what follows"


def _append_system(made: Chat, message: Message, following: Chat) -> None:
    """Put a later system message into the user's turn before it, or else the one after it."""
    content = _marked(message.get("content"))
    if made and made[-1]["role"] == "user":
        made[-1] = {**made[-1], "content": joined_content(made[-1].get("content"), content)}
    else:
        is_before_user = bool(following) and following[0]["role"] == "user"
        made.append({"role": "user", "content": content, **({_OPEN: True} if is_before_user else {})})


def _marked(content: Json) -> str:
    return f"<system>\n{_text(content)}\n</system>"


def _text(content: Json) -> str:
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def joined_content(first: Json, second: Json, between: str = "\n\n") -> Json:
    """Join two contents; parts stay parts."""
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    parts = _parts(first)
    last = parts[-1]
    assert isinstance(last, dict)
    return [*parts[:-1], {**last, "text": f"{last.get('text', '')}{between}"}, *_parts(second)]


def _parts(content: Json) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _append_joined(made: Chat, message: Message, role: str) -> None:
    """Append a message, or join it to the last one if that has the same role."""
    if not made or made[-1]["role"] != role:
        made.append(message)
        return
    last = made[-1]
    joined = {**message, **last}
    if last.get("content") or message.get("content"):
        joined["content"] = joined_content(last.get("content"), message.get("content"))
    for key in ("reasoning_content", "thinking"):
        if key in last and key in message:
            joined[key] = joined_content(last[key], message[key])
    first, second = last.get("tool_calls"), message.get("tool_calls")
    if isinstance(first, list) and isinstance(second, list):
        joined["tool_calls"] = first + second
    made[-1] = joined


def _alternating(chat: Chat) -> Chat:
    made: Chat = []
    for message in chat:
        role = message["role"]
        before = made[-1] if made else None
        if role == "assistant" and (before is None or before["role"] == "system"):
            made.append({"role": "user", "content": GREETING})
        elif role == "user" and before is not None and (before["role"] == "tool" or before.get("tool_calls")):
            made.append({"role": "assistant", "content": ACKNOWLEDGEMENT})
        if role in ("user", "assistant"):
            _append_joined(made, message, str(role))
        else:
            made.append(message)
    return made


def _calls(message: Message) -> list[Message]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _paired(chat: Chat) -> Chat:
    made: Chat = []
    i = 0
    while i < len(chat):
        message, calls = chat[i], _calls(chat[i])
        i += 1
        if message["role"] == "tool":
            _append_joined(made, {"role": "user", "content": _result_text(message)}, "user")
            continue
        if not calls:
            made.append(message)
            continue
        results: Chat = []
        while i < len(chat) and chat[i]["role"] == "tool":
            results.append(chat[i])
            i += 1
        for number, call in enumerate(calls):
            alone: Message = {**message, "tool_calls": [call]}
            made.append(alone if number == 0 else {"role": "assistant", "content": None, "tool_calls": [call]})
            found = [result for result in results if result.get("tool_call_id") == call.get("id")]
            made += found
            results = [result for result in results if result not in found]
        for result in results:
            _append_joined(made, {"role": "user", "content": _result_text(result)}, "user")
    return made


def _result_text(message: Message) -> str:
    return f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"


def calls_as_text(chat: Chat, write: Callable[[Message], str] | None = None) -> Chat:
    """Return the conversation with calls and results as text.  A user's text after a result is in the same turn."""
    made: Chat = []
    follows_result = False
    for message in chat:
        kept = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        calls = _calls(message)
        is_result = message["role"] == "tool"
        if is_result:
            kept = {"role": "user", "content": _result_text(message)}
        elif calls:
            texts = [_text(message.get("content")), *map(write or call_text, calls)]
            kept["content"] = "\n".join(filter(None, texts))
        if made and follows_result and kept["role"] == "user":
            made[-1] = {**made[-1], "content": joined_content(made[-1].get("content"), kept.get("content"), "\n")}
        else:
            made.append(kept)
        follows_result = is_result or (follows_result and kept["role"] == "user")
    return made


def call_text(call: Message) -> str:
    """Return a call between Hermes tags."""
    function = call.get("function", call)
    assert isinstance(function, dict)
    shown = {"name": function.get("name"), "arguments": arguments_object(function.get("arguments"))}
    return f"<tool_call>\n{json.dumps(shown, ensure_ascii=False)}\n</tool_call>"
