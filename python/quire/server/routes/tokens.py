"""Texts to tokens and back."""

from __future__ import annotations

from typing import Any

from ..bodies import Body
from ..calls import Call, Reply
from ..protocol import Ask
from .fields import Ids, Name, Text

__all__ = ["DetokenizeBody", "TokenizeBody", "detokenize", "tokenize"]


class TokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """``content``: the text.  ``with_pieces``: what each token shows, as text or, in half characters, as bytes."""

    content: Text
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    model: Name | None = None


class DetokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """``tokens``: ids."""

    tokens: Ids
    model: Name | None = None


async def tokenize(call: Call[TokenizeBody]) -> Reply:
    """The tokens of a text."""
    body = call.body
    values = {
        "text": body.content,
        "add_special": body.add_special,
        "parse_special": body.parse_special,
        "pieces": body.with_pieces,
    }
    answer = await call.ask(call.engine(body.model), Ask(0, "tokenize", values))
    if not body.with_pieces:
        return Reply.json({"tokens": answer["tokens"]})
    pairs = zip(answer["tokens"], answer["pieces"], strict=True)
    return Reply.json({"tokens": [{"id": id_, "piece": _piece(shown)} for id_, shown in pairs]})


def _piece(shown: bytes) -> Any:
    try:
        return shown.decode()
    except UnicodeDecodeError:
        return list(shown)


async def detokenize(call: Call[DetokenizeBody]) -> Reply:
    """The text of tokens."""
    values = {"tokens": call.body.tokens, "pieces": False}
    answer = await call.ask(call.engine(call.body.model), Ask(0, "detokenize", values))
    return Reply.json({"content": answer["text"]})
