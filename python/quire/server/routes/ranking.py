"""Documents by how well they answer a query, in the forms of Jina, which llama.cpp has, and of TEI."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import exp
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from ..body_types import Body
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.protocol import Embed
from .fields import Name, Text, hints_of

__all__ = ["RankBody", "rank"]

MAX_DOCUMENTS = 2048
_AT_ONCE = 64  # of one call in the engine, so that other callers get their turn


class Document(msgspec.Struct, frozen=True):
    """A document that is an object."""

    text: Text


Documents: TypeAlias = Annotated[list[Text | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class RankBody(Body, kw_only=True, forbid_unknown_fields=True):
    """``documents``, or TEI's ``texts``, whose answer is a list.  ``raw_scores`` false: TEI's are brought to 0 to 1."""

    query: Text
    documents: Documents | None = None
    texts: Annotated[list[Text], Meta(min_length=1, max_length=MAX_DOCUMENTS)] | None = None
    model: Name | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    raw_scores: bool = False
    return_text: bool = False
    refused = {"truncate": (False,)}


async def rank(context: RequestContext[RankBody]) -> Reply:
    """The best first."""
    body = context.body
    if (body.documents is None) == (body.texts is None):
        raise ApiError(400, "invalid_value", "documents must be given, or texts, but not both", "documents")
    given: Sequence[str | Document] = body.documents if body.documents is not None else body.texts or []
    texts = [item if isinstance(item, str) else item.text for item in given]
    scores, n_tokens = await _scored(context, context.engine(body.model), body.query, texts)
    best = sorted(range(len(texts)), key=lambda i: -scores[i])
    if body.texts is not None:
        return Reply.json([_of_tei(body, i, scores[i], texts[i]) for i in best])
    results: list[dict[str, Any]] = []
    for i in best[: body.top_n]:
        results.append({"index": i, "relevance_score": scores[i]})
        if body.return_documents:
            results[-1]["document"] = {"text": texts[i]}
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Reply.json({"model": body.model or context.model, "object": "list", "usage": usage, "results": results})


def _of_tei(body: RankBody, index: int, score: float, text: str) -> dict[str, Any]:
    shown = score if body.raw_scores else 1 / (1 + exp(-min(max(score, -700.0), 700.0)))
    return {"index": index, "score": shown, **({"text": text} if body.return_text else {})}


async def _scored(
    context: RequestContext[RankBody], engine: EngineClient, query: str, texts: Sequence[str]
) -> tuple[list[float], int]:
    hints = hints_of(context.caller)
    scores: list[float] = []
    n_tokens = 0
    for first in range(0, len(texts), _AT_ONCE):
        works = [Embed(0, text, 1, None, hints, query) for text in texts[first : first + _AT_ONCE]]
        for stream in [context.submit(engine, work) for work in works]:
            answer = await stream.answer()
            scores.append(array("f", answer["vector"])[0])
            n_tokens += answer["n_tokens"]
            context.service.metrics.embedded(answer["n_tokens"], answer["n_cached_tokens"], answer["seconds"])
    context.ticket.charge(n_tokens)
    context.exchange.usage = {"prompt_tokens": n_tokens, "generated_tokens": 0}
    return scores, n_tokens
