"""Convert the arguments of calls in a history, which clients send back as an object or as JSON text."""

from __future__ import annotations

import json

from quire.chat.messages import MAX_DEPTH, Json, plain
from quire.errors import RequestError

__all__ = ["arguments_object", "arguments_text"]

CLOSERS = {"{": "}", "[": "]"}


def arguments_object(arguments: Json) -> dict[str, Json]:
    """Return arguments as an object.

    Absent arguments are an empty object.  JSON text that was cut off keeps its complete members.  Any other value
    becomes the member ``arguments``.
    """
    value = arguments
    for _ in range(2):  # some clients encode twice
        if isinstance(value, str):
            value = _loaded(value)
    if value is None or value == "":
        return {}
    return value if isinstance(value, dict) else {"arguments": value}


def arguments_text(arguments: Json) -> str:
    """Return arguments as JSON text.  Text stays as the model wrote it, even if it was cut off."""
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null")):
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _loaded(text: str) -> Json:
    """Return the value of a JSON text, or the text itself if it is not JSON."""
    if not text.strip():
        return None
    for candidate in (text, *_completions(text)):
        try:
            value = plain(json.loads(candidate), "arguments")
        except (ValueError, RecursionError, RequestError):
            continue
        if isinstance(value, (dict, str)) or value is None or candidate is text:
            return value
    return text


def _completions(text: str) -> list[str]:
    """Return completions of an object that was cut off: at its end, and after its last complete member."""
    open_, in_string, escaped = "", False, False
    last: tuple[int, str] | None = None
    for i, character in enumerate(text):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in CLOSERS:
            open_ += CLOSERS[character]
            last = i + 1, open_
        elif character in "}]":
            open_ = open_[:-1]
        elif character == ",":
            last = i, open_
        if len(open_) > MAX_DEPTH:
            return []
    if last is None or not text.lstrip().startswith("{"):
        return []
    whole = (text[:-1] if escaped else text) + ('"' if in_string else "")
    return [whole + open_[::-1], text[: last[0]] + last[1][::-1]]
