"""llama.cpp's ``/completion`` and ``/infill``."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...failures import ApiError, Dialect
from ...listener import sse
from ...listener.replies import Events, Reply, event_stream
from ...listener.request_context import RequestContext
from ...worker.engine_client import EngineClient
from ...worker.params import set_fields
from ...worker.protocol import Ask, Delta, Finished, Generate, Logprob
from ..answers import ResponseStream
from ..fields import hints_of
from ..merging import merged
from ..probabilities import probability, shown_token
from ..sampling_fields import check_alternatives
from ..session_turns import begin_turn
from ..timings import progress_of, reading_so_far, timings_of, timings_so_far
from .fields import CompletionBody, GenerationFields, InfillBody, PromptObject, Settings, prompts_of, settings_of

__all__ = ["complete", "infill"]

MAX_PROMPTS = 128
USUAL_MARK = "<__media__>"


async def complete(context: RequestContext[CompletionBody]) -> Reply | Events:
    """Complete one prompt or several."""
    engine = context.engine(context.body.model)
    given = await context.prepared(prompts_of, context.body.prompt)
    if len(given) > MAX_PROMPTS:
        text = f"prompt has {len(given)} prompts: at most {MAX_PROMPTS} are allowed"
        raise ApiError(400, "invalid_value", text, "prompt")
    return await _answer(context, engine, [await _joined(context, engine, prompt) for prompt in given])


async def infill(context: RequestContext[InfillBody]) -> Reply | Events:
    """Fill the gap between two texts; rejected if the model does not support it."""
    body = context.body
    engine = context.engine(body.model)
    values = {
        "prefix": body.input_prefix,
        "suffix": body.input_suffix,
        "beginning": body.prompt,
        "extra": [(extra.filename, extra.text) for extra in body.input_extra],
    }
    answer = await context.ask(engine, Ask(0, "infill", values))
    return await _answer(context, engine, [answer["tokens"]])


async def _tokenize(
    context: RequestContext[Any], engine: EngineClient, text: str, add_special: bool, parse_special: bool
) -> list[int]:
    values = {"text": text, "add_special": add_special, "parse_special": parse_special, "pieces": False}
    answer = await context.ask(engine, Ask(0, "tokenize", values))
    ids: list[int] = answer["tokens"]
    return ids


async def _joined(
    context: RequestContext[Any], engine: EngineClient, prompt: str | list[int | str] | PromptObject
) -> str | list[int] | PromptObject:
    """Return a prompt as text, ids, or text with images; a list that mixes texts and ids becomes ids."""
    if isinstance(prompt, str | PromptObject):
        return prompt
    ids: list[int] = []
    for i, part in enumerate(prompt):
        ids += [part] if isinstance(part, int) else await _tokenize(context, engine, part, i == 0, True)
    return ids


async def _answer(
    context: RequestContext[Any], engine: EngineClient, prompts: list[str | list[int] | PromptObject]
) -> Reply | Events:
    body: GenerationFields = context.body

    async def tokenize(text: str, add_special: bool, parse_special: bool) -> list[int]:
        return await _tokenize(context, engine, text, add_special, parse_special)

    check_alternatives(context, n_probs=body.n_probs, logprobs=body.logprobs)
    settings = await settings_of(body, engine.info, tokenize)
    params = set_fields(settings.params)
    hints = hints_of(context.caller)
    if not body.cache_prompt:
        # A random salt, so that no block is shared, not even with the caller's own requests.
        hints = msgspec.structs.replace(hints, salt=os.urandom(32))
    work = Generate(
        0,
        "",
        params,
        hints,
        wants_progress=body.return_progress and body.stream,
        predict_s=body.t_max_predict_ms / 1000 if body.t_max_predict_ms > 0 else None,
    )
    works = [_with_prompt(work, prompt, context.service.media_marker) for prompt in prompts]
    turn = None
    if len(works) == 1:
        works[0], turn = begin_turn(context, engine, works[0], body)
    answers = [ResponseStream(context, context.submit(engine, each), turn=turn) for each in works]
    for answer in answers:
        await answer.start()
    shown = [await _text(context, engine, work.prompt) for work in works]
    shape = _Shape(body, settings, body.model or context.model, answers, shown)
    if body.stream:
        return event_stream(shape.pieces(), Dialect.LLAMA_CPP)
    results = await shape.whole()
    return Reply.json(results if len(results) > 1 else results[0])


def _with_prompt(work: Generate, prompt: str | list[int] | PromptObject, marker: str) -> Generate:
    if not isinstance(prompt, PromptObject):
        return msgspec.structs.replace(work, prompt=prompt)
    text = prompt.prompt_string
    # Text that a user typed cannot contain the random mark, so the usual one is text beside it.
    mark = marker if marker in text else USUAL_MARK
    return msgspec.structs.replace(work, prompt=text, media=prompt.multimodal_data, mark=mark)


async def _text(context: RequestContext[Any], engine: EngineClient, ids: str | list[int]) -> str:
    if isinstance(ids, str):
        return ids
    answer = await context.ask(engine, Ask(0, "detokenize", {"tokens": ids, "pieces": False}))
    text: str = answer["text"]
    return text


@dataclass
class _Result:
    """One choice of one prompt in progress."""

    index: int
    prompt: str
    n_prompt: int
    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    probabilities: list[msgspec.Raw] = field(default_factory=list)
    end: Finished | None = None
    first_s: float = 0.0


class _Shape:
    """Builds the answers in llama.cpp's format."""

    def __init__(
        self,
        body: GenerationFields,
        settings: Settings,
        model: str,
        answers: list[ResponseStream],
        prompts: list[str],
    ) -> None:
        self._body = body
        self._settings = settings
        self._model = model
        self._answers = answers
        self._n = settings.params.n
        self._results = [
            _Result(i, prompts[i // self._n], answers[i // self._n].usage.n_prompt)
            for i in range(len(prompts) * self._n)
        ]

    async def whole(self) -> list[dict[str, Any]]:
        """Collect all answers."""
        async with aclosing(merged(self._answers)) as batches:
            async for number, batch in batches:
                for event in batch:
                    self._take(number, event)
        return [self._final(result, "".join(result.text), result.ids) for result in self._results]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield all answers as server-sent events; the last of each has ``"stop": true``."""
        async with aclosing(merged(self._answers)) as batches:
            async for number, batch in batches:
                pieces = []
                for event in batch:
                    result = self._take(number, event)
                    if isinstance(event, Finished):
                        pieces.append(sse.event(self._final(result, "", [])))
                    elif event.n_read is not None:
                        pieces.append(sse.event(self._progress(result, event.n_read)))
                    elif self._settings.n_new != 0:
                        pieces.append(sse.event(self._partial(result, event)))
                yield b"".join(pieces)

    def _take(self, number: int, event: Delta | Finished) -> _Result:
        result = self._results[number * self._n + event.choice]
        if isinstance(event, Finished):
            result.end = event
        elif event.n_read is None and self._settings.n_new != 0:
            result.first_s = result.first_s or time.monotonic()
            result.text.append(event.content)
            result.ids += event.token_ids
            result.probabilities += [sse.raw(self._probability(token)) for token in event.logprobs]
        return result

    def _probability(self, token: Logprob) -> dict[str, Any]:
        return probability(token) if self._body.post_sampling_probs else _log_probability(token)

    def _head(self, result: _Result, text: str, ids: list[int]) -> dict[str, Any]:
        return {
            "index": result.index,
            "content": text,
            "tokens": list(ids) if self._body.return_tokens else [],
            "id_slot": -1,
            "tokens_predicted": len(result.ids),
            "tokens_evaluated": result.n_prompt,
        }

    def _partial(self, result: _Result, delta: Delta) -> dict[str, Any]:
        # Streams include token ids whether or not they are asked for.
        shown = {**self._head(result, delta.content, delta.token_ids), "tokens": delta.token_ids, "stop": False}
        if delta.logprobs:
            shown["completion_probabilities"] = [self._probability(token) for token in delta.logprobs]
        if self._body.timings_per_token:
            stream = self._answers[result.index // self._n].stream
            shown["timings"] = timings_so_far(stream, result.n_prompt, len(result.ids), result.first_s)
        return shown

    def _progress(self, result: _Result, n_read: int) -> dict[str, Any]:
        """Report how much of a prompt has been processed."""
        stream = self._answers[result.index // self._n].stream
        progress = progress_of(stream, result.n_prompt, n_read)
        timings = {"timings": reading_so_far(stream, n_read)} if self._body.timings_per_token else {}
        return {**self._head(result, "", []), "stop": False, "prompt_progress": progress, **timings}

    def _final(self, result: _Result, text: str, ids: list[int]) -> dict[str, Any]:
        end = result.end
        assert end is not None
        shown: dict[str, Any] = {
            **self._head(result, text, ids),
            "stop": True,
            "model": self._model,
            "generation_settings": self._settings.shown(),
            "prompt": result.prompt,
            "has_new_line": any("\n" in part for part in result.text),
            "truncated": False,
            **_stop_of(end),
            "tokens_cached": end.n_cached_tokens,
            "timings": timings_of(end, len(result.ids)),
        }
        if self._body.n_shown_probabilities:
            shown["completion_probabilities"] = result.probabilities
        return _selected(shown, self._body.response_fields)


def _stop_of(end: Finished) -> dict[str, Any]:
    if end.reason == "length":
        return {"stop_type": "limit", "stopping_word": ""}
    if isinstance(end.stop_reason, str):
        return {"stop_type": "word", "stopping_word": end.stop_reason}
    return {"stop_type": "eos", "stopping_word": ""}


def _selected(shown: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Return the requested fields; ``a/b`` is field b of field a, under the name ``a/b``.  No paths mean all fields."""
    if not fields:
        return shown
    selected: dict[str, Any] = {}
    for path in fields:
        value: Any = shown
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            selected[path] = value
    return selected


def _log_probability(token: Logprob) -> dict[str, Any]:
    return {
        **shown_token(token.token_id, token.shown),
        "logprob": token.logprob,
        "top_logprobs": [{**shown_token(id_, shown), "logprob": logprob} for id_, shown, logprob in token.top],
    }
