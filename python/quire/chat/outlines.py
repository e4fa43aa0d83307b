"""The outline of a conversation: everything that a template's decisions depend on, except the texts.

A conversation is rendered once with a unique word in place of each text.  Words that are missing from the rendering
show which texts the template would lose in any conversation with this outline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from quire.chat.messages import Json
from quire.chat.turns import Chat

__all__ = ["Outline", "Word", "n_lost", "outline_of", "sample_of", "sample_tools"]

MAX_ALIKE = 3
# The longest run of messages whose repetitions are left out.
MAX_PERIOD = 8
# Messages of an outline in which rounds may be there any number of times.
MAX_PLAIN = 32
ARGUMENT = "zqargument"


class Outline(NamedTuple):
    """One message without its texts.

    Attributes:
        content: absent, none, empty, text or parts.
        answers: Which call of the latest message with calls a result belongs to; -1 for none.
        refers: Whether the message has an id and a name of a call.
    """

    role: str
    content: str
    n_parts: int = 0
    n_calls: int = 0
    reasons: bool = False
    answers: int = -1
    refers: tuple[bool, bool] = (False, False)


class Word(NamedTuple):
    """A word that a rendering must have: exactly once, or at least once."""

    text: str
    once: bool


def outline_of(chat: Chat) -> tuple[Outline, ...]:
    """Return the outline of a conversation, with at most three copies of repeating messages."""
    made: list[Outline] = []
    ids: list[Json] = []
    for message in chat:
        content, calls = message.get("content"), message.get("tool_calls")
        n_calls = len(calls) if isinstance(calls, list) else 0
        if isinstance(calls, list):
            ids = [call.get("id") for call in calls if isinstance(call, dict)]
        id = message.get("tool_call_id")
        answers = ids.index(id) if message["role"] == "tool" and id in ids else -1
        n_parts = len(content) if isinstance(content, list) else 0
        kind = "parts" if n_parts else "text" if content else "empty" if isinstance(content, str) else "none"
        made.append(
            Outline(
                str(message["role"]),
                kind if "content" in message else "absent",
                min(n_parts, MAX_ALIKE),
                min(n_calls, MAX_ALIKE),
                bool(message.get("reasoning_content")),
                min(answers, MAX_ALIKE - 1),
                (bool(id), bool(message.get("name"))),
            )
        )
        _shorten(made)
    return tuple(made if len(made) <= MAX_PLAIN else _without_known_rounds(made))


def _without_known_rounds(made: list[Outline]) -> list[Outline]:
    """Drop rounds, each from a user's turn to the next, that occurred before, except for the last two."""
    rounds: list[list[Outline]] = []
    for message in made:
        if not rounds or (message.role == "user" and rounds[-1][-1].role != "user"):
            rounds.append([])
        rounds[-1].append(message)
    seen = Counter[tuple[Outline, ...]]()
    kept: list[Outline] = []
    for i, part in enumerate(rounds):
        seen[tuple(part)] += 1
        if seen[tuple(part)] == 1 or i >= len(rounds) - 2:
            kept += part
    return kept


def _shorten(made: list[Outline]) -> None:
    """Drop the last messages if they repeat what precedes them three times already."""
    for n in range(1, MAX_PERIOD + 1):
        if len(made) < 4 * n:
            return
        if made[-1] == made[-1 - n] and all(made[-n:] == made[-n * (k + 1) : -n * k] for k in (1, 2, 3)):
            del made[-n:]
            return


def sample_of(outline: Sequence[Outline]) -> tuple[Chat, list[Word]]:
    """Return a conversation with this outline, and the words that its rendering must have."""
    chat: Chat = []
    words: list[Word] = []
    ids: list[str] = []

    def word(once: bool) -> str:
        words.append(Word(f"zq{len(words):05d}", once))
        return words[-1].text

    for message in outline:
        made: dict[str, Json] = {"role": message.role}
        # Some templates leave out what is said beside calls.
        is_needed = not message.n_calls
        once = message.role != "assistant"
        if message.content == "parts":
            made["content"] = [{"type": "text", "text": word(once)} for _ in range(message.n_parts)]
        elif message.content == "text":
            made["content"] = word(once) if is_needed else "zqbeside"
        elif message.content != "absent":
            made["content"] = "" if message.content == "empty" else None
        if message.reasons:
            made |= {"reasoning_content": "zqthought", "thinking": "zqthought"}
        if message.n_calls:
            ids = [f"zqid{len(words) + i:05d}" for i in range(message.n_calls)]
            made["tool_calls"] = [_call(id, word(False)) for id in ids]
        has_id, has_name = message.refers
        if has_id:
            made["tool_call_id"] = ids[message.answers] if message.answers >= 0 else "zqidnone0"
        if has_name:
            made["name"] = "zqname"
        chat.append(made)
    return chat, words


def _call(id: str, name: str) -> dict[str, Json]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": {ARGUMENT: 1}}}


def sample_tools() -> list[dict[str, Json]]:
    """Return a tool for rendering with a sample."""
    properties: Json = {ARGUMENT: {"type": "integer", "description": "A number."}}
    parameters: Json = {"type": "object", "properties": properties, "required": [ARGUMENT]}
    return [{"type": "function", "function": {"name": "zqtool", "description": "Does it.", "parameters": parameters}}]


def n_lost(rendering: str, words: Sequence[Word]) -> int:
    """Return how many words are missing or occur too often."""
    counts = [(rendering.count(word.text), word.once) for word in words]
    return sum(count == 0 or (once and count > 1) for count, once in counts)
