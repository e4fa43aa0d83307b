"""Rank documents by a query, in the formats of Jina, llama.cpp and TEI; score pairs in vLLM's format."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.protocol import Score
from .classes import sigmoid
from .embedding_inputs import Conversation, InputObject, input_of, shown_parts
from .fields import Name, Text, hints_of
from .known_fields import check_fields
from .texts import MAX_TEXTS, CutBody, asked_together

__all__ = ["RankBody", "ScoreBody", "rank", "score"]


Documents: TypeAlias = Annotated[list[Text | dict[str, Any]], Meta(min_length=1, max_length=MAX_TEXTS)]
Texts: TypeAlias = Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]
Shown: TypeAlias = Annotated[list[Text | InputObject], Meta(min_length=1, max_length=MAX_TEXTS)]
Side: TypeAlias = Text | InputObject | Shown
Input: TypeAlias = str | Conversation
_IMAGE_FIELDS = ("image", "image_url", "content")


class RankBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A query with ``documents``, or with TEI's ``texts``; the answer to the latter is a list.

    For models that embed images, a document may be ``{"image": ...}``, with a data: URL, base64, or a URL that the
    operator allows; the query, too.

    ``raw_scores`` false maps TEI's scores to 0 to 1.  ``instruction`` tells what makes a document relevant, for models
    whose template has a place for it.
    """

    query: Text | InputObject
    documents: Documents | None = None
    texts: Texts | None = None
    model: Name | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    raw_scores: bool = False
    return_text: bool = False
    instruction: Text | None = None


class ScoreBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A request in vLLM's format: one text against several, or two equally long lists; fields have three names.

    For models that embed images, ``{"image": ...}`` or ``{"content": [{"type": "image_url", ...}]}`` takes the place of
    a text.  ``logits``: CLIP and SigLIP give transformers' ``logits_per_image`` in place of cosines.
    """

    model: Name | None = None
    text_1: Side | None = None
    text_2: Side | None = None
    data_1: Side | None = None
    data_2: Side | None = None
    queries: Side | None = None
    documents: Side | None = None
    instruction: Text | None = None
    activation: bool | None = None
    use_activation: bool | None = None
    logits: bool = False
    example: ClassVar[dict[str, object]] = {"text_1": "Where is the fox?", "text_2": ["In the forest.", "A red ball"]}


async def rank(context: RequestContext[RankBody]) -> Reply:
    """Rank documents, best first."""
    body = context.body
    if (body.documents is None) == (body.texts is None):
        raise ApiError(400, "invalid_value", "give either documents or texts", "documents")
    _note_unused(context)
    given: Sequence[str | dict[str, Any]] = body.documents if body.documents is not None else body.texts or []
    texts = [item if isinstance(item, str) else _document_of(item, i, context) for i, item in enumerate(given)]
    query = body.query if isinstance(body.query, str) else input_of(body.query, "query")
    pairs = [(query, text) for text in texts]
    name = "documents" if body.documents is not None else "texts"
    fields = [("query", f"{name}[{i}]") for i in range(len(texts))]
    answers = await _scored(context, context.engine(body.model), pairs, fields, body.instruction)
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
            results[-1]["document"] = {"text": text} if isinstance(text := texts[i], str) else given[i]
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


def _document_of(document: dict[str, Any], index: int, context: RequestContext[Any]) -> Input:
    """The text or image of a document given as an object.  Other fields are noted; ApiError 400 if it has neither."""
    place = f"documents[{index}]"
    known = [name for name in _IMAGE_FIELDS if document.get(name) is not None]
    if known and "text" not in document:
        check_fields(document, ("type", *_IMAGE_FIELDS), place, context)
        try:
            return input_of(msgspec.convert({name: document[name] for name in known}, InputObject), place)
        except msgspec.ValidationError as error:
            raise ApiError(400, "invalid_value", f"{place}: {error}", place) from None
    text = document.get("text")
    if not isinstance(text, str):
        raise ApiError(
            400, "invalid_value", f"{place}.text is missing: a document is text, or an object with it", place
        )
    check_fields(document, ("text",), place, context)
    return text


def _of_tei(body: RankBody, index: int, score: float, text: Input) -> dict[str, Any]:
    return {"index": index, "score": score, **({"text": text} if body.return_text else {})}


async def score(context: RequestContext[ScoreBody]) -> Reply:
    """Score pairs in their order; between 0 and 1 unless ``activation`` is false."""
    body = context.body
    pairs, fields = _pairs(body)
    answers = await _scored(context, context.engine(body.model), pairs, fields, body.instruction)
    raw = body.activation is False or body.use_activation is False
    if body.logits and any(answer.get("logit") is None for answer in answers):
        text = "the model has no logits of texts and images: leave out logits"
        raise ApiError(400, "unsupported_parameter", text, "logits")
    shown = [answer["logit"] if body.logits else _shown(answer, raw) for answer in answers]
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


def _pairs(body: ScoreBody) -> tuple[list[tuple[Input, Input]], list[tuple[str, str]]]:
    """Return the pairs, and where each side is in the body.

    ApiError 400 if a side is missing, given twice, or of a different length.
    """
    sides, places = [], []
    for names in (("text_1", "data_1", "queries"), ("text_2", "data_2", "documents")):
        given = [(value, name) for name in names if (value := getattr(body, name)) is not None]
        if len(given) != 1:
            raise ApiError(400, "invalid_value", f"give one of {', '.join(names)}", names[0])
        sides.append(_side(*given[0]))
        is_one = not isinstance(given[0][0], list)
        places.append([given[0][1] if is_one else f"{given[0][1]}[{i}]" for i in range(len(sides[-1]))])
    first, second = sides
    if len(first) not in (1, len(second)):
        text = f"text_1 has {len(first)} texts: expected one, or {len(second)} as in text_2"
        raise ApiError(400, "invalid_value", text, "text_1")
    n = len(second) if len(first) == 1 else 1
    return list(zip(first * n, second, strict=True)), list(zip(places[0] * n, places[1], strict=True))


def _side(given: Side, field: str) -> list[Input]:
    """Return one side's texts and images; each part of a lone object is one, as in vLLM."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, InputObject):
        if not isinstance(given.content, list) or not given.content:
            return [input_of(given, field)]
        return [shown_parts([part], field) for part in given.content]
    return [item if isinstance(item, str) else input_of(item, field) for item in given]


def _usage(answers: Sequence[dict[str, Any]]) -> dict[str, int]:
    n_tokens = sum(answer["n_tokens"] for answer in answers)
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


async def _scored(
    context: RequestContext[Any],
    engine: EngineClient,
    pairs: Sequence[tuple[Input, Input]],
    fields: Sequence[tuple[str, str]],
    instruction: str | None,
) -> list[dict[str, Any]]:
    hints, rules = hints_of(context.caller), context.body.rules()
    messages: dict[int, list[dict[str, Any]]] = {}  # each image is fetched once
    for one in {id(one): one for pair in pairs for one in pair}.values():
        messages[id(one)] = await context.with_images(one.messages) if isinstance(one, Conversation) else []
    works = [
        Score(
            0, first if isinstance(first, str) else "", second if isinstance(second, str) else "", instruction, hints,
            rules, messages[id(first)], messages[id(second)],
        )
        for first, second in pairs
    ]  # fmt: skip
    names = [{"query": query, "document": document} for query, document in fields]
    return await asked_together(context, engine, works, names)
