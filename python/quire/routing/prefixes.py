"""Hashes of the beginnings of requests: two requests share as many as their prompts share blocks of text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["BLOCK_BYTES", "prefix_hashes"]

BLOCK_BYTES = 256
"""About 64 tokens of text."""
MOST_BLOCKS = 4096
_PROMPTS = ("prompt", "input", "inputs", "text", "content")
# These fields change the blocks of a server's cache, as the prompt does.
_APART = ("model", "cache_salt", "lora", "lora_request")
_BEFORE = ("tools", "functions", "system", "instructions", "chat_template", "chat_template_kwargs", "reasoning_effort")


def prefix_hashes(body: Mapping[str, Any], key: str = "") -> list[int]:
    """Return a hash for each block of a request's prompt, each including all blocks before it.

    Args:
        body: The request's JSON, of any API that Quire serves.
        key: The caller's API key: callers do not share cached blocks.
    """
    head = json.dumps([key, *(body.get(name) for name in _APART)], default=str)
    state = hashlib.blake2b(head.encode(), digest_size=8)
    found: list[int] = []
    left = b""
    for text in _texts(body):
        left += text.encode("utf-8", "surrogatepass") + b"\0"
        start = 0
        while len(left) - start >= BLOCK_BYTES:
            state.update(left[start : start + BLOCK_BYTES])
            found.append(int.from_bytes(state.digest(), "little"))
            if len(found) >= MOST_BLOCKS:
                return found
            start += BLOCK_BYTES
        left = left[start:]
    return found


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of a prompt in the order in which templates write them."""
    for name in _BEFORE:
        if body.get(name):
            yield _text(body[name])
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            yield str(message.get("role", ""))
            yield _text(message.get("content"))
            if message.get("tool_calls"):
                yield _text(message["tool_calls"])
        else:
            yield _text(message)
    for name in _PROMPTS:
        given = body.get(name)
        for part in given if isinstance(given, list) else (given,):
            if part is not None:
                yield _text(part)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping) and value[0].get("type") == "text":
        return str(value[0].get("text"))  # the same prompt as the text alone
    return json.dumps(value, sort_keys=True, default=str)
