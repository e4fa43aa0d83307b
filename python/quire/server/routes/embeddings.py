"""Embeddings, in each dialect's format."""

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
from ..worker.protocol import Ask, Embed, TextRules
from .embedding_inputs import Conversation, Inputs, Messages, Mixed, inputs_of, prompts_of
from .fields import Ids, Name, Text, hints_of
from .ollama.fields import KeepAlive, keep_alive_s, name_of
from .texts import MAX_TEXTS, CutBody, PromptedBody, asked_together

__all__ = [
    "Dimensions",
    "EmbeddingsBody",
    "LlamaBody",
    "OllamaBody",
    "OllamaOldBody",
    "TeiBody",
    "Vectors",
    "Wanted",
    "embed",
    "embedded",
    "floats_of",
    "llama_embed",
    "ollama_embed",
    "ollama_embed_one",
    "tei_embed",
    "tei_embed_all",
]  # fmt: skip

MAX_INPUTS = MAX_TEXTS

_AS_THEY_ARE = TextRules()

Precision: TypeAlias = Literal["int8", "uint8", "binary", "ubinary"]
Dimensions: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]


class EmbeddingsBody(PromptedBody, kw_only=True, forbid_unknown_fields=True):
    """A request in OpenAI's format: a text, token ids, or a list of either.

    ``pooling`` overrides the pooling named in the model file.  If ``normalize`` is false, vectors keep their length.
    ``output_dtype`` is Mistral's and Voyage's: integers or packed signs in place of numbers, as JSON or in base64.
    ``output_dimension`` is their name of ``dimensions``.  ``messages`` in place of ``input`` is vLLM's: a conversation,
    perhaps with images, laid out by the model's chat template; ``add_generation_prompt`` adds the beginning of an
    answer.
    """

    input: Inputs | None = None
    messages: Messages | None = None
    add_generation_prompt: bool = False
    example: ClassVar[dict[str, object]] = {"input": ["Once upon a time", "The end"]}
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | Precision = "float"
    output_dtype: Literal["float"] | Precision | None = None
    dimensions: Dimensions | None = None
    output_dimension: Dimensions | None = None
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool = True
    user: Annotated[str, Meta(max_length=512)] | None = None


class LlamaBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A request in llama.cpp's format.  ``embd_normalize``: -1 none, 0 by the largest value, p by the p-norm."""

    content: Inputs | None = None
    input: Inputs | None = None
    model: Name | None = None
    embd_normalize: Annotated[int, Meta(ge=-1, le=64)] = 2
    encoding_format: Literal["float"] = "float"


class OllamaOldBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A request in Ollama's older format: one text."""

    model: Name
    prompt: Text
    keep_alive: KeepAlive | None = None
    truncate: bool = True
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"options": ({},)}


class OllamaBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A request in Ollama's format: one text or several.

    Texts that are too long are cut unless ``truncate`` is false.
    """

    model: Name
    input: Text | Annotated[list[Text], Meta(max_length=MAX_INPUTS)] = []
    dimensions: Dimensions | None = None
    keep_alive: KeepAlive | None = None
    truncate: bool = True
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"options": ({},)}


class TeiBody(PromptedBody, kw_only=True, forbid_unknown_fields=True):
    """A request in TEI's format: a text, or a list of texts or token ids."""

    inputs: Text | Annotated[list[Text | Ids], Meta(min_length=1, max_length=MAX_INPUTS)]
    normalize: bool = True
    dimensions: Dimensions | None = None
    model: Name | None = None


@dataclass(frozen=True)
class Vectors:
    """The vectors of prompts as little-endian float32, and the number of tokens in all prompts.

    ``answers``: see ``protocol.Embed``.
    """

    answers: list[dict[str, Any]]
    n_tokens: int
    n_rows: list[int]  # vectors of each prompt; one per token without pooling

    @property
    def encoded(self) -> list[bytes]:
        """The vectors of each prompt."""
        return [answer["vector"] for answer in self.answers]

    def texts(self) -> list[str]:
        """Encode each vector in base64."""
        return [b64encode(encoded).decode() for encoded in self.encoded]

    def shown(self, kind: str, *, encoded: bool = False) -> list[Any]:
        """Return vectors as JSON numbers of a kind, or with ``encoded`` as text in base64."""
        if kind == "float":
            return self.texts() if encoded else self.floats()
        parts: list[bytes] = [answer[kind] for answer in self.answers]
        if encoded:
            return [b64encode(part).decode() for part in parts]
        code = "b" if kind in ("int8", "binary") else "B"
        return [sse.raw(array(code, part).tolist()) for part in parts]

    def rows(self) -> list[msgspec.Raw]:
        """Encode the vectors of every token of each prompt as JSON numbers."""
        made = []
        for encoded, n in zip(self.encoded, self.n_rows, strict=True):
            size = len(encoded) // n
            # Encode row by row: a single call would hold the GIL for seconds and block every other stream.
            rows = [sse.encode(floats_of(encoded[i * size : (i + 1) * size])) for i in range(n)]
            made.append(msgspec.Raw(b"[" + b",".join(rows) + b"]"))
        return made

    def floats_in_list(self) -> list[msgspec.Raw]:
        """Encode each vector as JSON numbers, in a list of its own."""
        return [sse.raw([floats_of(encoded)]) for encoded in self.encoded]

    def floats(self) -> list[msgspec.Raw]:
        """Encode each vector as JSON numbers."""
        return [sse.raw(floats_of(encoded)) for encoded in self.encoded]


def floats_of(encoded: bytes) -> list[float]:
    """Return little-endian float32 numbers as a list."""
    row = array("f", encoded)
    if sys.byteorder == "big":
        row.byteswap()
    return row.tolist()


async def _ids_of(context: RequestContext[Any], engine: EngineClient, given: Mixed) -> str | list[int] | Conversation:
    """Return an input as the engine takes it, after tokenizing texts among ids and fetching images."""
    if isinstance(given, Conversation):
        return Conversation(await context.with_images(given.messages), given.begins_answer)
    if isinstance(given, str):
        return given
    ids: list[int] = []
    for i, part in enumerate(given):
        if isinstance(part, int):
            ids.append(part)
            continue
        values = {"text": part, "add_special": i == 0, "parse_special": True, "pieces": False}
        ids += (await context.ask(engine, Ask(0, "tokenize", values)))["tokens"]
    return ids


@dataclass(frozen=True)
class Wanted:
    """How to compute vectors; see ``protocol.Embed``."""

    norm: int | None
    n_dimensions: int | None = None
    rules: TextRules = _AS_THEY_ARE
    pooling: Literal["none", "mean", "cls", "last"] | None = None
    output: Literal["dense", "sparse", "multi", "classes", "tokens", "auto"] = "dense"
    precisions: tuple[Precision, ...] = ()


async def embedded(
    context: RequestContext[Any], engine: EngineClient, prompts: Sequence[Mixed], wanted: Wanted, field: str = ""
) -> Vectors:
    """Compute the vectors of prompts.  ``field``: where they are in the body, unless they are its messages."""
    hints = hints_of(context.caller)
    read = [await _ids_of(context, engine, prompt) for prompt in prompts]
    asked = Embed(0, "", wanted.n_dimensions, wanted.norm, hints, wanted.rules, wanted.pooling, wanted.output)
    asked = msgspec.structs.replace(asked, precisions=wanted.precisions)
    works = [_with_prompt(asked, prompt) for prompt in read]
    fields = [{"messages": f"{field}[{i}]"} for i in range(len(works))] if field else ()
    answers = await asked_together(context, engine, works, fields)
    n_tokens = sum(answer["n_tokens"] for answer in answers)
    n_rows = [answer.get("n_rows", 1) for answer in answers]
    return Vectors(answers, n_tokens, n_rows)


def _with_prompt(asked: Embed, prompt: str | list[int] | Conversation) -> Embed:
    if not isinstance(prompt, Conversation):
        return msgspec.structs.replace(asked, prompt=prompt)
    return msgspec.structs.replace(asked, messages=prompt.messages, begins_answer=prompt.begins_answer)


def _is_unpooled(context: RequestContext[Any]) -> bool:
    """Return True if the server returns one vector for each token by default."""
    return context.service.settings.defaults.get("pooling") == "none"


def _check_pooled(context: RequestContext[Any]) -> None:
    """Raise ApiError 400 if the server returns one vector per token, which most response formats cannot hold."""
    if _is_unpooled(context):
        text = "this server runs with --pooling none and returns one vector per token: use /embedding or /embed_all"
        raise ApiError(400, "unsupported_parameter", text, "pooling")


async def embed(context: RequestContext[EmbeddingsBody]) -> Reply:
    """Compute vectors of length 1, in OpenAI's format."""
    body = context.body
    if body.pooling is None:
        _check_pooled(context)
    try:
        prompts = await context.prepared(inputs_of, body.input, body.messages, body.add_generation_prompt)
        dtype = body.output_dtype or (body.encoding_format if body.encoding_format != "base64" else "float")
        precisions = () if dtype == "float" else (dtype,)
        n_dimensions = body.dimensions if body.dimensions is not None else body.output_dimension
        norm = 2 if body.normalize else None
        wanted = Wanted(norm, n_dimensions, body.rules(), body.pooling, precisions=precisions)
        field = "input" if body.messages is None else ""
        made = await embedded(context, context.engine(body.model), prompts, wanted, field)
    except ApiError as error:
        if error.param == "prompt":  # the engine's name for the field
            error.param = "input"
        raise
    is_text = body.encoding_format == "base64"
    shown = await context.offload(lambda: made.shown(dtype, encoded=is_text))
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(shown)]
    usage = {"prompt_tokens": made.n_tokens, "total_tokens": made.n_tokens}
    return Reply.json({"object": "list", "data": data, "model": body.model or context.model, "usage": usage})


async def llama_embed(context: RequestContext[LlamaBody]) -> Reply:
    """Compute vectors in llama.cpp's format."""
    body = context.body
    field = "input" if body.input is not None else "content"
    given = getattr(body, field)
    if given is None or (body.input is not None and body.content is not None):
        raise ApiError(400, "invalid_value", "give either content or input", "content")
    # Vectors of single tokens are not normalized, as in llama.cpp.
    norm = None if body.embd_normalize < 0 or _is_unpooled(context) else body.embd_normalize
    prompts = await context.prepared(prompts_of, given, field)
    made = await embedded(context, context.engine(body.model), prompts, Wanted(norm, None, body.rules()))
    rows = await context.offload(made.rows if _is_unpooled(context) else made.floats_in_list)
    return Reply.json([{"index": i, "embedding": vectors} for i, vectors in enumerate(rows)])


async def ollama_embed(context: RequestContext[OllamaBody]) -> Reply:
    """Compute vectors of length 1, in Ollama's format."""
    body = context.body
    _check_pooled(context)
    context.keep(keep_alive_s(body.keep_alive))
    engine = context.engine(name_of(body.model))
    prompts = prompts_of(body.input, "input") if body.input else []
    made = await embedded(context, engine, prompts, Wanted(2, body.dimensions, TextRules(body.truncate)))
    return Reply.json(
        {
            "model": body.model,
            "embeddings": await context.offload(made.floats),
            "total_duration": int((time.monotonic() - context.arrived_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": made.n_tokens,
        }
    )


async def ollama_embed_one(context: RequestContext[OllamaOldBody]) -> Reply:
    """Compute one vector without normalizing it, in Ollama's older format."""
    body = context.body
    _check_pooled(context)
    context.keep(keep_alive_s(body.keep_alive))
    wanted = Wanted(None, None, TextRules(body.truncate))
    made = await embedded(context, context.engine(name_of(body.model)), [body.prompt], wanted)
    return Reply.json({"embedding": (await context.offload(made.floats))[0]})


async def tei_embed(context: RequestContext[TeiBody]) -> Reply:
    """Compute vectors in TEI's format."""
    body = context.body
    _check_pooled(context)
    wanted = Wanted(2 if body.normalize else None, body.dimensions, body.rules())
    made = await embedded(context, context.engine(body.model), prompts_of(body.inputs, "inputs"), wanted)
    return Reply.json(await context.offload(made.floats))


async def tei_embed_all(context: RequestContext[TeiBody]) -> Reply:
    """Compute the vector of every token without normalizing it, in TEI's format."""
    body = context.body
    wanted = Wanted(None, body.dimensions, body.rules(), "none")
    made = await embedded(context, context.engine(body.model), prompts_of(body.inputs, "inputs"), wanted)
    return Reply.json(await context.offload(made.rows))
