"""Texts to tokens and back."""

from __future__ import annotations

from ...body_types import Body
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...worker.protocol import Ask
from ..fields import Ids, Name, Text

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


async def tokenize(context: RequestContext[TokenizeBody]) -> Reply:
    """The tokens of a text."""
    body = context.body
    values = {
        "text": body.content,
        "add_special": body.add_special,
        "parse_special": body.parse_special,
        "pieces": body.with_pieces,
    }
    return Reply(await context.ask(context.engine(body.model), Ask(0, "tokenize", values, encoded=True)))


async def detokenize(context: RequestContext[DetokenizeBody]) -> Reply:
    """The text of tokens."""
    values = {"tokens": context.body.tokens, "name": "content"}
    return Reply(await context.ask(context.engine(context.body.model), Ask(0, "detokenize", values, encoded=True)))
