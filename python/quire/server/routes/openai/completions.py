"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from ...failures import ApiError, Dialect
from ...listener import sse
from ...listener.replies import Events, Reply, event_stream
from ...listener.request_context import RequestContext
from ...worker.engine_client import EngineClient
from ...worker.params import set_fields
from ...worker.protocol import Ask, Delta, Finished, Generate, Logprob
from ..answers import ResponseStream, Usage, new_id
from ..fields import Id, Ids, SharedFields, Text, shown_tier
from ..merging import merged
from ..sampling_fields import TopCount, check_alternatives, limits_of
from ..session_turns import begin_turn
from .chat_fields import StreamOptions
from .hidden_states import check_rows, check_states, with_states

__all__ = ["CompletionBody", "complete"]

MAX_PROMPTS = 128
_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class CompletionBody(SharedFields, kw_only=True, forbid_unknown_fields=True):
    """A request in OpenAI's format, with Quire's sampling fields."""

    prompt: Text | Annotated[list[Text | Id | Ids], Meta(min_length=1, max_length=1 << 22)] | None = None
    prompt_embeds: Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_PROMPTS)] | None = None
    example: ClassVar[dict[str, object]] = {"prompt": "Once upon a time", "max_tokens": 16}
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 16
    best_of: Annotated[int, limits_of("n")] | None = None
    echo: bool = False
    suffix: Text = ""
    logprobs: TopCount | bool | None = None
    prompt_logprobs: TopCount | None = None
    stream_options: StreamOptions | None = None

    def __post_init__(self) -> None:
        if isinstance(self.logprobs, bool):  # the type that chats use
            self.logprobs = 1 if self.logprobs else None

    def prompts(self) -> list[str | list[int] | bytes]:
        """Split the field into prompts: a text, ids, or a list of either; or files of embeddings."""
        prompt = self.prompt
        if self.prompt_embeds is not None:
            return self._embeddings(self.prompt_embeds)
        if prompt is None:
            raise ApiError(400, "missing_field", "prompt is missing", "prompt")
        if isinstance(prompt, str):
            return [prompt]
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) == len(prompt):
            return [ids]
        several: list[str | list[int] | bytes] = [item for item in prompt if not isinstance(item, int)]
        if ids or len({type(item) for item in several}) > 1:
            raise ApiError(400, "invalid_value", "prompt mixes texts and token ids", "prompt")
        if len(several) > MAX_PROMPTS:
            text = f"prompt has {len(several)} prompts: at most {MAX_PROMPTS} are allowed"
            raise ApiError(400, "invalid_value", text, "prompt")
        return several

    def _embeddings(self, given: str | list[str]) -> list[str | list[int] | bytes]:
        for name, is_set in (("prompt", bool(self.prompt)), ("echo", self.echo), ("suffix", bool(self.suffix))):
            if is_set:
                raise ApiError(400, "invalid_value", f"prompt_embeds cannot be combined with {name}", name)
        files = [given] if isinstance(given, str) else given
        from ....media.decode import MAX_BYTES, decode_base64  # imports NumPy, which the listener does without

        return [decode_base64(each, max_bytes=MAX_BYTES, what="file of prompt_embeds") for each in files]

    def reason_of(self, end: Finished) -> str:
        """Return why a choice ended; with ``max_tokens`` 0, the hidden token does not count."""
        return end.reason if self.max_tokens else "length"

    def work(
        self, engine: EngineClient, context: RequestContext[CompletionBody], prompt: str | list[int] | bytes
    ) -> Generate:
        """Return the engine's work for one prompt."""
        n_drawn = self.best_of or self.n
        if n_drawn < self.n:
            raise ApiError(400, "invalid_value", f"best_of {n_drawn} is below n {self.n}", "best_of")
        if n_drawn > self.n and self.stream:
            raise ApiError(400, "invalid_value", "best_of above n is not supported in a stream", "best_of")
        if n_drawn > self.n and self.post_sampling_probs:
            text = "post_sampling_probs cannot be combined with best_of, which compares the model's own probabilities"
            raise ApiError(400, "invalid_value", text, "post_sampling_probs")
        check_alternatives(context, logprobs=self.logprobs, prompt_logprobs=self.prompt_logprobs)
        logprobs = self.logprobs if n_drawn == self.n or self.logprobs is not None else 0
        prompt_logprobs = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            prompt_logprobs = max(self.logprobs, prompt_logprobs or 0)
        form = self.wanted_form()
        params = self.params(
            engine.info,
            # Processing a prompt always produces a token; it is hidden if none was asked for.
            max(self.max_tokens, 1),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=form,
        )
        fields = {**set_fields(params), **({"n": n_drawn} if n_drawn > 1 else {})}
        hints = self.hints_for(context.caller)
        if isinstance(prompt, bytes):
            return Generate(0, "", fields, hints, embeds=prompt)
        return Generate(0, prompt, fields, hints, self.echo or prompt_logprobs is not None)


class _Choice:
    """One choice in progress."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.table = _Table()
        self._sum, self._n = 0.0, 0

    def add(self, delta: Delta) -> None:
        """Add a delta."""
        self.text.append(delta.content)
        self.table.add(delta.logprobs)
        self._sum += sum(token.logprob for token in delta.logprobs)
        self._n += len(delta.logprobs)

    def mean_logprob(self) -> float:
        """Return the mean log-probability, by which ``best_of`` ranks choices."""
        return self._sum / max(self._n, 1)


@dataclass
class _Prompt:
    """A prompt in progress."""

    answer: ResponseStream
    echoed: str = ""
    ids: list[int] = field(default_factory=list)
    token_ids: dict[int, list[int]] = field(default_factory=dict)  # by choice that is shown
    shown: list[bytes] = field(default_factory=list)
    prompt_logprobs: list[Logprob] = field(default_factory=list)


async def complete(context: RequestContext[CompletionBody]) -> Reply | Events:
    """Complete one prompt or several."""
    body = context.body
    engine = context.engine(body.model)
    given = await context.prepared(body.prompts)
    if body.suffix:
        given = [await _filled(context, engine, prompt) for prompt in given]
    works = [await context.prepared(body.work, engine, context, prompt) for prompt in given]
    turn = None
    if len(works) == 1 and not body.suffix:
        works[0], turn = begin_turn(context, engine, works[0], body)
    elif body.session is not None:
        raise ApiError(400, "invalid_value", "a turn of a session takes a single text as its prompt", "prompt")
    layers = check_states(context, engine, *works)
    if layers is not None:
        works = [msgspec.structs.replace(work, wants_prompt_ids=True) for work in works]
    prompts = [_Prompt(ResponseStream(context, context.submit(engine, work), turn=turn)) for work in works]
    for prompt in prompts:
        await prompt.answer.start()
        if layers is not None:
            check_rows(prompt.answer, layers, len(prompts))
        await _read_prompt(context, engine, prompt)
    head = {
        "id": f"cmpl-{new_id()}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model or context.model,
        **shown_tier(body.service_tier),
    }
    if body.stream:
        return event_stream(_pieces(body, head, prompts), Dialect.OPENAI)
    whole = await _whole(body, head, prompts)
    for i, prompt in enumerate(prompts if layers is not None else ()):
        of_prompt = {"choices": whole["choices"][i * body.n : (i + 1) * body.n]}
        await with_states(engine, prompt.answer, of_prompt, prompt.token_ids, layers or [])
    return Reply.json(whole)


async def _filled(
    context: RequestContext[CompletionBody], engine: EngineClient, prompt: str | list[int] | bytes
) -> list[int]:
    """Return the prompt after which the model writes the text between ``prompt`` and ``suffix``."""
    body = context.body
    if not isinstance(prompt, str) or body.echo:
        text = f"suffix cannot be combined with {'echo' if body.echo else 'a prompt of token ids'}"
        raise ApiError(400, "invalid_value", text, "suffix")
    values = {"prefix": prompt, "suffix": body.suffix, "beginning": "", "extra": []}
    answer = await context.ask(engine, Ask(0, "infill", values))
    ids: list[int] = answer["tokens"]
    return ids


async def _read_prompt(context: RequestContext[CompletionBody], engine: EngineClient, prompt: _Prompt) -> None:
    """Fetch the prompt's tokens and text if the answer shows them."""
    started = prompt.answer.stream.started
    assert started is not None
    if started.prompt_ids is None:
        return
    prompt.ids = started.prompt_ids
    answer = await context.ask(engine, Ask(0, "detokenize", {"tokens": prompt.ids, "pieces": True}))
    prompt.shown = answer["pieces"]
    if context.body.echo:
        prompt.echoed = answer["text"]


async def _whole(body: CompletionBody, head: dict[str, Any], prompts: list[_Prompt]) -> dict[str, Any]:
    groups = await asyncio.gather(*(_collect(body, prompt) for prompt in prompts))
    usage = _usage_of(body, prompts)
    choices = [choice for group in groups for choice in group]
    for index, choice in enumerate(choices):
        choice["index"] = index
    return {**head, "choices": choices, "usage": usage.openai()}


def _usage_of(body: CompletionBody, prompts: list[_Prompt]) -> Usage:
    usage = Usage()
    for prompt in prompts:
        usage.add(prompt.answer.usage)
    if not body.max_tokens:
        usage.n_generated = 0
    return usage


async def _collect(body: CompletionBody, prompt: _Prompt) -> list[dict[str, Any]]:
    parts = [_Choice() for _ in range(body.best_of or body.n)]
    written: dict[int, list[int]] = {}
    async for delta in prompt.answer.deltas():
        prompt.prompt_logprobs += delta.prompt_logprobs
        if body.max_tokens:
            parts[delta.choice].add(delta)
            written.setdefault(delta.choice, []).extend(delta.token_ids)
    order = range(len(parts))
    if len(parts) > body.n:
        order = sorted(order, key=lambda i: -parts[i].mean_logprob())[: body.n]  # type: ignore[assignment]
    offload = prompt.answer.context.offload
    echoed = await offload(_table_of, prompt) if body.echo and body.logprobs is not None else _Table()
    ranked = None if body.prompt_logprobs is None else await offload(_all_ranked, prompt)
    choices = []
    prompt.token_ids = {place: written.get(i, []) for place, i in enumerate(order)}
    for i in order:
        choice: dict[str, Any] = {
            "index": 0,
            "text": prompt.echoed + "".join(parts[i].text),
            "logprobs": None,
            "finish_reason": body.reason_of(prompt.answer.ends[i]),
        }
        if body.logprobs is not None:
            choice["logprobs"] = echoed.before(parts[i].table)
        if ranked is not None:
            choice["prompt_logprobs"] = ranked
        choices.append(choice)
    return choices


async def _pieces(body: CompletionBody, head: dict[str, Any], prompts: list[_Prompt]) -> AsyncIterator[bytes]:
    wants_usage = body.stream_options is not None and body.stream_options.include_usage
    more = {"usage": None} if wants_usage else {}
    tables = [_Table() for _ in range(len(prompts) * body.n)]

    def chunk(index: int, text: str, reason: str | None, logprobs: Any) -> bytes:
        one = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return sse.event({**head, "choices": [one], **more})

    if body.echo and body.logprobs is None:
        for number, prompt in enumerate(prompts):
            yield b"".join(chunk(number * body.n + i, prompt.echoed, None, None) for i in range(body.n))
    async with aclosing(merged([prompt.answer for prompt in prompts])) as batches:
        async for number, batch in batches:
            pieces = []
            for event in batch:
                index = number * body.n + event.choice
                if isinstance(event, Finished):
                    pieces.append(chunk(index, "", body.reason_of(event), None))
                elif (new := await _new_of(body, prompts[number], event, tables[index])) is not None:
                    pieces.append(chunk(index, new[0], None, new[1]))
            yield b"".join(pieces)
    if wants_usage:
        usage = _usage_of(body, prompts)
        yield sse.event({**head, "choices": [], "usage": usage.openai()})
    yield sse.DONE


async def _new_of(body: CompletionBody, prompt: _Prompt, delta: Delta, table: _Table) -> tuple[str, Any] | None:
    """Return text and log-probabilities of one event; the prompt's log-probabilities go with its first token."""
    prompt.prompt_logprobs += delta.prompt_logprobs
    if not delta.token_ids and not delta.content:
        return None
    text = delta.content if body.max_tokens else ""
    if body.logprobs is None:
        return text, None
    if body.echo and table.empty:
        table.take_in(await prompt.answer.context.offload(_table_of, prompt))
        text = prompt.echoed + text
    table.add(delta.logprobs if body.max_tokens else [])
    return text, table.take()


def _ranked(token: Logprob) -> dict[str, Any]:
    return {
        "logprob": token.logprob,
        "decoded_token": _text(token.shown),
        "top": [{"id": id_, "decoded_token": _text(shown), "logprob": p} for id_, shown, p in token.top],
    }


def _text(shown: bytes) -> str:
    return shown.decode("utf-8", "replace")


def _all_ranked(prompt: _Prompt) -> list[msgspec.Raw | None]:
    """Return the prompt's log-probabilities in vLLM's format."""
    return [None, *(sse.raw({str(token.token_id): _ranked(token)}) for token in prompt.prompt_logprobs)]


def _table_of(prompt: _Prompt) -> _Table:
    """Return a table of the prompt's tokens.  The first one has no log-probability because nothing precedes it."""
    table = _Table()
    if prompt.shown:
        table.row(prompt.shown[0], None, None)
    table.add(prompt.prompt_logprobs)
    return table


class _Table:
    """OpenAI's older format of log-probabilities: columns, with offsets into the text."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}
        self._offset = 0
        # Several tokens may form one character, which is only once in the text.
        self._decoder = _utf8_decoder("replace")
        self.empty = True
        self.take()

    def add(self, tokens: list[Logprob]) -> None:
        """Append tokens."""
        for token in tokens:
            # If several tokens have the same text, keep the first one, which is the most likely.
            top = {_text(shown): p for _, shown, p in reversed(token.top)}
            if top:  # always include the drawn token, in addition if it is not among them
                top.setdefault(_text(token.shown), token.logprob)
            self.row(token.shown, token.logprob, top)

    def row(self, shown: bytes, logprob: float | None, top: dict[str, float] | None) -> None:
        """Append one token; its offset is that of the character that it is part of."""
        self.empty = False
        self._columns["tokens"].append(_text(shown))
        self._columns["token_logprobs"].append(logprob)
        self._columns["top_logprobs"].append(None if top is None else sse.raw(top))
        self._columns["text_offset"].append(self._offset)
        self._offset += len(self._decoder.decode(shown))

    @property
    def n_characters(self) -> int:
        """The length of the whole text, counting an incomplete character at its end."""
        return self._offset + (1 if self._decoder.getstate()[0] else 0)

    def take_in(self, other: _Table) -> None:
        """Append another table's rows."""
        self._columns = self.before(other)
        self._offset += other.n_characters
        self.empty = self.empty and other.empty

    def before(self, other: _Table) -> dict[str, list[Any]]:
        """Return the columns of these rows followed by another table's."""
        joined = {name: column + other._columns[name] for name, column in self._columns.items()}
        joined["text_offset"][len(self._columns["text_offset"]) :] = [
            self.n_characters + offset for offset in other._columns["text_offset"]
        ]
        return joined

    def take(self) -> dict[str, list[Any]]:
        """Return the rows added since the last call."""
        taken = self._columns
        self._columns = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        return taken
