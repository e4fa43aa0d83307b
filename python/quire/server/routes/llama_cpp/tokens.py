"""Convert texts to tokens and back."""

from __future__ import annotations

from typing import ClassVar

from ...body_types import Body
from ...failures import ApiError
from ...listener.replies import Reply
from ...listener.request_context import RequestContext
from ...worker.protocol import Ask
from ..fields import Ids, Name, Text

__all__ = ["DetokenizeBody", "TokenizeBody", "detokenize", "tokenize"]


class TokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A text to tokenize.  ``with_pieces`` also returns each token's text, or its bytes if it is part of a character.

    In vLLM's format the text is ``prompt``, and ``add_special_tokens`` defaults to true; the answer has vLLM's format,
    too.
    """

    content: Text | None = None
    example: ClassVar[dict[str, object]] = {"content": "Once upon a time"}
    prompt: Text | None = None
    add_special_tokens: bool = True
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    model: Name | None = None


class DetokenizeBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Token ids to turn into text."""

    tokens: Ids
    model: Name | None = None


async def tokenize(context: RequestContext[TokenizeBody]) -> Reply:
    """Tokenize a text."""
    body = context.body
    if (body.content is None) == (body.prompt is None):
        raise ApiError(400, "invalid_value", "give either content or prompt", "content")
    if body.prompt is not None:
        return await _as_vllm(context, body.prompt)
    values = {
        "text": body.content,
        "add_special": body.add_special,
        "parse_special": body.parse_special,
        "pieces": body.with_pieces,
    }
    return Reply(await context.ask(context.engine(body.model), Ask(0, "tokenize", values, encoded=True)))


async def _as_vllm(context: RequestContext[TokenizeBody], prompt: str) -> Reply:
    engine = context.engine(context.body.model)
    values = {"text": prompt, "add_special": context.body.add_special_tokens, "parse_special": True, "pieces": False}
    ids = (await context.ask(engine, Ask(0, "tokenize", values)))["tokens"]
    return Reply.json({"count": len(ids), "max_model_len": engine.info.n_ctx, "tokens": ids})


async def detokenize(context: RequestContext[DetokenizeBody]) -> Reply:
    """Turn tokens into text."""
    values = {"tokens": context.body.tokens, "name": "content"}
    return Reply(await context.ask(context.engine(context.body.model), Ask(0, "detokenize", values, encoded=True)))
