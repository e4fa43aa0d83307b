"""Embeddings, in each dialect."""

from __future__ import annotations

import sys
import time
from array import array
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ..body_types import Body
from ..failures import ApiError
from ..listener import sse
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.protocol import Embed
from .fields import Id, Ids, Name, Text, hints_of
from .ollama.fields import KeepAlive, keep_alive_s, name_of

__all__ = [
    "EmbeddingsBody", "LlamaBody", "OllamaBody", "OllamaOldBody", "embed", "llama_embed", "ollama_embed",
    "ollama_embed_one",
]  # fmt: skip

MAX_INPUTS = 2048
_AT_ONCE = 64  # of one call in the engine, so that other callers get their turn

Inputs: TypeAlias = Text | Annotated[list[Text | Id | Ids], Meta(min_length=1, max_length=1 << 22)]
Dimensions: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]


class EmbeddingsBody(Body, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's fields: a text, ids, or a list of either."""

    input: Inputs
    model: Name | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None


class LlamaBody(Body, kw_only=True, forbid_unknown_fields=True):
    """llama.cpp's fields.  ``embd_normalize``: -1 not at all, 0 by the largest, p by the p-norm."""

    content: Inputs | None = None
    input: Inputs | None = None
    model: Name | None = None
    embd_normalize: Annotated[int, Meta(ge=-1, le=64)] = 2
    encoding_format: Literal["float"] = "float"


class OllamaOldBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Ollama's older fields: one text."""

    model: Name
    prompt: Text
    keep_alive: KeepAlive | None = None
    refused: ClassVar[dict[str, tuple[object, ...]]] = {"options": ({},)}


class OllamaBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Ollama's fields: a text or several."""

    model: Name
    input: Text | Annotated[list[Text], Meta(max_length=MAX_INPUTS)] = []
    dimensions: Dimensions | None = None
    keep_alive: KeepAlive | None = None
    refused: ClassVar[dict[str, tuple[object, ...]]] = {"options": ({},), "truncate": (False,)}


@dataclass(frozen=True)
class _Vectors:
    """Little-endian float32 of each prompt, and how many tokens all prompts have."""

    encoded: list[bytes]
    n_tokens: int

    def floats(self) -> list[msgspec.Raw]:
        """As numbers in JSON, row by row."""
        return [sse.raw(_floats(encoded)) for encoded in self.encoded]


def _floats(encoded: bytes) -> list[float]:
    row = array("f", encoded)
    if sys.byteorder == "big":
        row.byteswap()
    return row.tolist()


def _prompts(given: Any, field: str) -> list[str | list[int]]:
    """The prompts, one by one.  ApiError 400 for a list that mixes them, or has too many."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) == len(given):
        return [ids]
    if ids or len({type(item) for item in given}) > 1:
        raise ApiError(400, "invalid_value", f"{field} must have texts, ids or lists of ids but mixes them", field)
    if len(given) > MAX_INPUTS:
        text = f"{field} must have at most {MAX_INPUTS} entries but has {len(given)}"
        raise ApiError(400, "invalid_value", text, field)
    return list(given)


async def _embedded(
    context: RequestContext[Any],
    engine: EngineClient,
    prompts: Sequence[str | list[int]],
    norm: int | None,
    n_dimensions: int | None,
) -> _Vectors:
    hints = hints_of(context.caller)
    encoded: list[bytes] = []
    n_tokens = 0
    for first in range(0, len(prompts), _AT_ONCE):
        works = [Embed(0, prompt, n_dimensions, norm, hints) for prompt in prompts[first : first + _AT_ONCE]]
        streams = [context.submit(engine, work) for work in works]
        for stream in streams:
            answer = await stream.answer()
            encoded.append(answer["vector"])
            n_tokens += answer["n_tokens"]
            context.service.metrics.embedded(answer["n_tokens"], answer["n_cached_tokens"], answer["seconds"])
    context.ticket.charge(n_tokens)
    context.exchange.usage = {"prompt_tokens": n_tokens, "generated_tokens": 0}
    return _Vectors(encoded, n_tokens)


async def embed(context: RequestContext[EmbeddingsBody]) -> Reply:
    """Vectors of length 1, by OpenAI's interface."""
    body = context.body
    try:
        prompts = await context.prepared(_prompts, body.input, "input")
        made = await _embedded(context, context.engine(body.model), prompts, 2, body.dimensions)
    except ApiError as error:
        if error.param == "prompt":  # the engine's word for it
            error.param = "input"
        raise
    shown: list[Any]
    if body.encoding_format == "base64":
        shown = [b64encode(encoded).decode() for encoded in made.encoded]
    else:
        shown = await context.apart(made.floats)
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(shown)]
    usage = {"prompt_tokens": made.n_tokens, "total_tokens": made.n_tokens}
    return Reply.json({"object": "list", "data": data, "model": body.model or context.model, "usage": usage})


async def llama_embed(context: RequestContext[LlamaBody]) -> Reply:
    """Vectors by llama.cpp's interface."""
    body = context.body
    field = "input" if body.input is not None else "content"
    given = getattr(body, field)
    if given is None or (body.input is not None and body.content is not None):
        raise ApiError(400, "invalid_value", "content must be given, or input, but not both", "content")
    norm = None if body.embd_normalize < 0 else body.embd_normalize
    prompts = await context.prepared(_prompts, given, field)
    made = await _embedded(context, context.engine(body.model), prompts, norm, None)
    return Reply.json(
        [{"index": i, "embedding": [vector]} for i, vector in enumerate(await context.apart(made.floats))]
    )


async def ollama_embed(context: RequestContext[OllamaBody]) -> Reply:
    """Vectors of length 1, by Ollama's interface."""
    body = context.body
    context.keep(keep_alive_s(body.keep_alive))
    engine = context.engine(name_of(body.model))
    prompts = _prompts(body.input, "input") if body.input else []
    made = await _embedded(context, engine, prompts, 2, body.dimensions)
    return Reply.json(
        {
            "model": body.model,
            "embeddings": await context.apart(made.floats),
            "total_duration": int((time.monotonic() - context.arrived_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": made.n_tokens,
        }
    )


async def ollama_embed_one(context: RequestContext[OllamaOldBody]) -> Reply:
    """A vector as the model has it, by Ollama's older interface."""
    body = context.body
    context.keep(keep_alive_s(body.keep_alive))
    made = await _embedded(context, context.engine(name_of(body.model)), [body.prompt], None, None)
    return Reply.json({"embedding": (await context.apart(made.floats))[0]})
