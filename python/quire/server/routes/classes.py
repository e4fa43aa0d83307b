"""Classify texts, in the formats of vLLM and TEI."""

from __future__ import annotations

import time
import uuid
from math import exp
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.protocol import Score
from .fields import Ids, Name, Text, hints_of
from .texts import MAX_TEXTS, CutBody, asked_together

__all__ = ["ClassifyBody", "PredictBody", "classify", "predict", "sigmoid"]

Input: TypeAlias = Text | Annotated[list[Text | Ids], Meta(min_length=1, max_length=MAX_TEXTS)]
# A text, a pair of two texts, or a list of lists that each hold one or two texts.
Inputs: TypeAlias = (
    Text
    | Annotated[
        list[Text | Annotated[list[Text], Meta(min_length=1, max_length=2)]], Meta(min_length=1, max_length=MAX_TEXTS)
    ]
)


class PredictBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A request in TEI's format: a text, a pair of two, or a list of lists with one or two texts."""

    inputs: Inputs
    raw_scores: bool = False
    model: Name | None = None


class ClassifyBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A request in vLLM's format, or in TEI's if it has ``inputs``."""

    input: Input | None = None
    inputs: Inputs | None = None
    raw_scores: bool = False
    model: Name | None = None
    activation: bool | None = None
    use_activation: bool | None = None


def sigmoid(score: float) -> float:
    """Map a score to between 0 and 1."""
    return 1 / (1 + exp(-min(max(score, -700.0), 700.0)))


def _label(answer: dict[str, Any], i: int) -> str:
    labels = answer["labels"]
    return str(labels[i]) if i < len(labels) else f"LABEL_{i}"


async def predict(context: RequestContext[PredictBody]) -> Reply:
    """Classify each text; list its classes, the most likely first."""
    body = context.body
    return await _predicted(context, body.inputs, body.raw_scores, body.model)


async def _predicted(context: RequestContext[Any], inputs: Any, raw: bool, model: str | None) -> Reply:
    is_batch = isinstance(inputs, list) and isinstance(inputs[0], list)
    given = inputs if is_batch else [[inputs] if isinstance(inputs, str) else inputs]
    if any(not isinstance(item, list) or len(item) > 2 for item in given):
        text = "invalid inputs: expected a text, two texts, or a list of lists with one or two texts"
        raise ApiError(400, "invalid_value", text, "inputs")
    if not is_batch and any(not isinstance(text, str) for text in given[0]):
        raise ApiError(400, "invalid_value", "inputs mix texts and lists", "inputs")
    hints, rules = hints_of(context.caller), context.body.rules()
    works = [Score(0, item[0], item[1] if len(item) > 1 else None, None, hints, rules) for item in given]
    answers = await asked_together(context, context.engine(model), works)
    found = []
    for answer in answers:
        shown = answer["scores" if raw else "shown"]
        entries = [{"label": _label(answer, i), "score": value} for i, value in enumerate(shown)]
        found.append(sorted(entries, key=lambda entry: -entry["score"]))
    return Reply.json(found if is_batch else found[0])


async def classify(context: RequestContext[ClassifyBody]) -> Reply:
    """Classify each text; return its most likely class and all probabilities.  With ``inputs``, same as ``predict``."""
    body = context.body
    if (body.input is None) == (body.inputs is None):
        raise ApiError(400, "invalid_value", "give either input or inputs", "input")
    if body.inputs is not None:
        return await _predicted(context, body.inputs, body.raw_scores, body.model)
    assert body.input is not None
    given = [body.input] if isinstance(body.input, str) else body.input
    hints, rules = hints_of(context.caller), body.rules()
    works = [Score(0, text, None, None, hints, rules) for text in given]
    answers = await asked_together(context, context.engine(body.model), works)
    raw = body.raw_scores or body.activation is False or body.use_activation is False
    data = []
    for i, answer in enumerate(answers):
        shown = answer["scores" if raw else "shown"]
        best = max(range(len(shown)), key=shown.__getitem__)
        data.append({"index": i, "label": _label(answer, best), "probs": shown, "num_classes": len(shown)})
    n_tokens = sum(answer["n_tokens"] for answer in answers)
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens, "completion_tokens": 0}
    return Reply.json(
        {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or context.model,
            "data": data,
            "usage": usage,
        }
    )
