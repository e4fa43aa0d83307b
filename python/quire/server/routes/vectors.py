"""Vectors of other kinds and in fewer bits, and tags of tokens, in the formats of Cohere, vLLM and TEI."""

from __future__ import annotations

import sys
import time
import uuid
from array import array
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ..failures import ApiError
from ..listener import sse
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.protocol import Tag, TextRules
from .embedding_inputs import Conversation, InputPart, Inputs, Messages, Mixed, inputs_of, prompts_of, shown_parts
from .embeddings import Dimensions, Vectors, Wanted, embedded, floats_of
from .fields import Ids, Name, Text, hints_of
from .texts import MAX_TEXTS, CutBody, PromptedBody, asked_together

__all__ = [
    "CohereBody", "PoolingBody", "SimilarityBody", "SparseBody", "TagBody", "cohere_embed", "embed_sparse", "pool",
    "similarity", "tag",
]  # fmt: skip

Texts: TypeAlias = Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]
Kind: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class CohereInput(msgspec.Struct, forbid_unknown_fields=True):
    """An input of several parts, texts and images, which are joined."""

    content: Annotated[list[InputPart], Meta(min_length=1, max_length=4096)]


class CohereBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A request in Cohere's format.  Texts that are too long are cut at the end unless ``truncate`` says otherwise.

    ``images`` are data: URLs.
    """

    model: Name | None = None
    texts: Texts | None = None
    inputs: Annotated[list[CohereInput], Meta(min_length=1, max_length=MAX_TEXTS)] | None = None
    images: Texts | None = None
    input_type: Annotated[str, Meta(max_length=256)] | None = None
    embedding_types: Annotated[list[Kind], Meta(min_length=1, max_length=6)] = msgspec.field(
        default_factory=lambda: ["float"]
    )
    output_dimension: Dimensions | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    example: ClassVar[dict[str, object]] = {"texts": ["Once upon a time"]}

    def rules(self) -> TextRules:
        cut = super().rules()
        return TextRules(self.max_tokens or cut.truncate, cut.side, None, self.input_type)


class SparseBody(PromptedBody, kw_only=True, forbid_unknown_fields=True):
    """A request in TEI's format: a text, or a list of texts or token ids."""

    inputs: Text | Annotated[list[Text | Ids], Meta(min_length=1, max_length=MAX_TEXTS)]
    model: Name | None = None


class PoolingBody(PromptedBody, kw_only=True, forbid_unknown_fields=True):
    """A request in vLLM's format.  Without ``task`` the model decides: classes, or the vectors that it makes."""

    input: Inputs | None = None
    messages: Messages | None = None
    add_generation_prompt: bool = False
    model: Name | None = None
    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    example: ClassVar[dict[str, object]] = {"input": "Once upon a time"}


class TagBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A text or several, for models that classify tokens; ``aggregation_strategy`` as in transformers' pipeline."""

    inputs: Text | Texts
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignore_labels: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=1024)] = msgspec.field(
        default_factory=lambda: ["O"]
    )
    model: Name | None = None


class Sentences(msgspec.Struct, forbid_unknown_fields=True):
    """A sentence, and those that are compared with it."""

    source_sentence: Text
    sentences: Texts


class SimilarityBody(PromptedBody, kw_only=True, forbid_unknown_fields=True):
    """A request in TEI's format."""

    inputs: Sentences
    model: Name | None = None


def _shown(made: Vectors, kind: Kind) -> list[Any]:
    return made.texts() if kind == "base64" else made.shown(kind)


async def cohere_embed(context: RequestContext[CohereBody]) -> Reply:
    """Compute vectors of length 1, in Cohere's format."""
    body = context.body
    if sum(given is not None for given in (body.texts, body.inputs, body.images)) != 1:
        raise ApiError(400, "invalid_value", "give either texts, inputs or images", "texts")
    contents = [item.content for item in body.inputs or []] + [[InputPart(image=url)] for url in body.images or []]
    inputs: list[Mixed] = [*(body.texts or [])] or [shown_parts(parts, "inputs") for parts in contents]
    texts = [given for given in inputs if not isinstance(given, Conversation)]
    kinds = list(dict.fromkeys(body.embedding_types))
    precisions = tuple(kind for kind in kinds if kind != "float" and kind != "base64")  # noqa: PLR1714 (for the type)
    wanted = Wanted(2, body.output_dimension, body.rules(), precisions=precisions)
    made = await embedded(context, context.engine(body.model), inputs, wanted)
    return Reply.json(
        {
            "id": str(uuid.uuid4()),
            "embeddings": {kind: await context.offload(partial(_shown, made, kind)) for kind in kinds},
            "texts": texts,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": made.n_tokens}},
            "response_type": "embeddings_by_type",
        }
    )


async def embed_sparse(context: RequestContext[SparseBody]) -> Reply:
    """Compute sparse vectors, in TEI's format."""
    body = context.body
    wanted = Wanted(None, None, body.rules(), output="sparse")
    made = await embedded(context, context.engine(body.model), prompts_of(body.inputs, "inputs"), wanted)

    def shown() -> list[msgspec.Raw]:
        return [sse.raw(_entries(answer)) for answer in made.answers]

    return Reply.json(await context.offload(shown))


def _entries(answer: dict[str, Any]) -> list[dict[str, Any]]:
    indices = array("i", answer["indices"])
    if sys.byteorder == "big":
        indices.byteswap()
    return [
        {"index": index, "value": value}
        for index, value in zip(indices.tolist(), floats_of(answer["values"]), strict=True)
    ]


_OUTPUTS: dict[str | None, Literal["auto", "dense", "classes", "tokens"]] = {
    None: "auto",
    "embed": "dense",
    "classify": "classes",
    "token_classify": "classes",
    "token_embed": "tokens",
}


async def pool(context: RequestContext[PoolingBody]) -> Reply:
    """Compute what a pooling model makes, in vLLM's format: vectors, or classes, of texts or of tokens."""
    body = context.body
    is_raw = body.normalize is False or body.use_activation is False
    wanted = Wanted(None if is_raw else 2, body.dimensions, body.rules(), output=_OUTPUTS[body.task])
    made = await embedded(
        context, context.engine(body.model), inputs_of(body.input, body.messages, body.add_generation_prompt), wanted
    )
    if any("vector" not in answer for answer in made.answers):
        raise ApiError(400, "unsupported_parameter", "the model makes sparse vectors: use /embed_sparse", "task")
    is_of_tokens = body.task in ("token_embed", "token_classify") or any(n > 1 for n in made.n_rows)
    shown: list[Any]
    if body.encoding_format == "base64":
        shown = made.texts()
    else:
        shown = await context.offload(made.rows if is_of_tokens else made.floats)
    return Reply.json(
        {
            "id": f"pool-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or context.model,
            "data": [{"index": i, "object": "pooling", "data": data} for i, data in enumerate(shown)],
            "usage": {"prompt_tokens": made.n_tokens, "total_tokens": made.n_tokens},
        }
    )


async def tag(context: RequestContext[TagBody]) -> Reply:
    """Find the named entities of texts."""
    body = context.body
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    hints, rules = hints_of(context.caller), body.rules()
    works = [Tag(0, text, body.aggregation_strategy, tuple(body.ignore_labels), hints, rules) for text in texts]
    answers = await asked_together(context, context.engine(body.model), works)
    found = [answer["entities"] for answer in answers]
    return Reply.json(found[0] if isinstance(body.inputs, str) else found)


async def similarity(context: RequestContext[SimilarityBody]) -> Reply:
    """Compare a sentence with others, by the cosine of their vectors, in TEI's format."""
    body, given = context.body, context.body.inputs
    wanted = Wanted(2, None, body.rules())
    made = await embedded(context, context.engine(body.model), [given.source_sentence, *given.sentences], wanted)

    def products() -> list[float]:
        first, *others = [floats_of(one) for one in made.encoded]
        return [sum(a * b for a, b in zip(first, other, strict=True)) for other in others]

    return Reply.json(await context.offload(products))
