"""Rank documents by a query, in the formats of Jina, llama.cpp and TEI; score pairs in vLLM's format."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta

from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.protocol import Score
from .classes import sigmoid
from .fields import Name, Text, hints_of
from .known_fields import check_fields
from .texts import MAX_TEXTS, CutBody, asked_together

__all__ = ["RankBody", "ScoreBody", "rank", "score"]


Documents: TypeAlias = Annotated[list[Text | dict[str, Any]], Meta(min_length=1, max_length=MAX_TEXTS)]
Texts: TypeAlias = Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]


class RankBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A query with ``documents``, or with TEI's ``texts``; the answer to the latter is a list.

    ``raw_scores`` false maps TEI's scores to 0 to 1.  ``instruction`` tells what makes a document relevant, for models
    whose template has a place for it.
    """

    query: Text
    documents: Documents | None = None
    texts: Texts | None = None
    model: Name | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    raw_scores: bool = False
    return_text: bool = False
    instruction: Text | None = None


class ScoreBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A request in vLLM's format: one text against several, or two equally long lists; fields have two names."""

    model: Name | None = None
    text_1: Text | Texts | None = None
    text_2: Text | Texts | None = None
    queries: Text | Texts | None = None
    documents: Text | Texts | None = None
    instruction: Text | None = None
    activation: bool | None = None
    use_activation: bool | None = None
    example: ClassVar[dict[str, object]] = {"text_1": "Where is the fox?", "text_2": ["In the forest.", "A red ball"]}


async def rank(context: RequestContext[RankBody]) -> Reply:
    """Rank documents, best first."""
    body = context.body
    if (body.documents is None) == (body.texts is None):
        raise ApiError(400, "invalid_value", "give either documents or texts", "documents")
    _note_unused(context)
    given: Sequence[str | dict[str, Any]] = body.documents if body.documents is not None else body.texts or []
    texts = [item if isinstance(item, str) else _text_of(item, i, context) for i, item in enumerate(given)]
    pairs = [(body.query, text) for text in texts]
    answers = await _scored(context, context.engine(body.model), pairs, body.instruction)
    scores = [answer["relevance"] for answer in answers]
    best = sorted(range(len(texts)), key=lambda i: -scores[i])
    if body.texts is not None:
        # Products of vectors (MaxSim) are not mapped to 0..1.
        raw = body.raw_scores or answers[0].get("is_product", False)
        return Reply.json(
            [_of_tei(body, i, scores[i] if raw else sigmoid(scores[i]), texts[i]) for i in best[: body.top_n]]
        )
    results: list[dict[str, Any]] = []
    for i in best[: body.top_n]:
        # Like llama.cpp: a classifier's own score, or the probability of "yes".
        shown = sigmoid(scores[i]) if answers[i]["is_judged"] else scores[i]
        results.append({"index": i, "relevance_score": shown})
        if body.return_documents:
            results[-1]["document"] = {"text": texts[i]}
    usage = _usage(answers)
    return Reply.json(
        {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": body.model or context.model,
            "object": "list",
            "usage": usage,
            "results": results,
        }
    )


def _note_unused(context: RequestContext[RankBody]) -> None:
    """Note fields that only the other form of request reads."""
    body = context.body
    others = ("return_documents",) if body.texts is not None else ("raw_scores", "return_text")
    for name in others:
        if getattr(body, name):
            context.ignore(name)


def _text_of(document: dict[str, Any], index: int, context: RequestContext[RankBody]) -> str:
    """The text of a document given as an object.  Other fields are noted; ApiError 400 if it has no text."""
    place = f"documents[{index}]"
    text = document.get("text")
    if not isinstance(text, str):
        raise ApiError(
            400, "invalid_value", f"{place}.text is missing: a document is text, or an object with it", place
        )
    check_fields(document, ("text",), place, context)
    return text


def _of_tei(body: RankBody, index: int, score: float, text: str) -> dict[str, Any]:
    return {"index": index, "score": score, **({"text": text} if body.return_text else {})}


async def score(context: RequestContext[ScoreBody]) -> Reply:
    """Score pairs in their order; between 0 and 1 unless ``activation`` is false."""
    body = context.body
    pairs = _pairs(body)
    answers = await _scored(context, context.engine(body.model), pairs, body.instruction)
    raw = body.activation is False or body.use_activation is False
    shown = [_shown(answer, raw) for answer in answers]
    return Reply.json(
        {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or context.model,
            "data": [{"index": i, "object": "score", "score": value} for i, value in enumerate(shown)],
            "usage": _usage(answers),
        }
    )


def _shown(answer: dict[str, Any], raw: bool) -> float:
    """Return a score after the activation function that the model's authors specify."""
    found: float = answer["relevance"]
    return found if raw or answer["is_raw"] else sigmoid(found)


def _pairs(body: ScoreBody) -> list[tuple[str, str]]:
    """Return the pairs.  ApiError 400 if a side is missing, given twice, or of a different length."""
    sides = []
    for one, other in (("text_1", "queries"), ("text_2", "documents")):
        given = [value for value in (getattr(body, one), getattr(body, other)) if value is not None]
        if len(given) != 1:
            raise ApiError(400, "invalid_value", f"give either {one} or {other}", one)
        sides.append([given[0]] if isinstance(given[0], str) else given[0])
    first, second = sides
    if len(first) not in (1, len(second)):
        text = f"text_1 has {len(first)} texts: expected one, or {len(second)} as in text_2"
        raise ApiError(400, "invalid_value", text, "text_1")
    return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))


def _usage(answers: Sequence[dict[str, Any]]) -> dict[str, int]:
    n_tokens = sum(answer["n_tokens"] for answer in answers)
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


async def _scored(
    context: RequestContext[Any], engine: EngineClient, pairs: Sequence[tuple[str, str]], instruction: str | None
) -> list[dict[str, Any]]:
    hints, rules = hints_of(context.caller), context.body.rules()
    works = [Score(0, first, second, instruction, hints, rules) for first, second in pairs]
    return await asked_together(context, engine, works)
