"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from msgspec import structs

from ...failures import Dialect
from ...listener import sse
from ...listener.replies import Events, Reply, event_stream
from ...listener.request_context import RequestContext
from ...worker.protocol import CallDelta, Delta, Finished, Logprob
from ..answers import Message, ResponseStream, Usage, new_id
from ..fields import shown_tier
from ..probabilities import probability
from ..session_turns import begin_turn
from ..timings import progress_of, reading_so_far, timings_of, timings_so_far
from ..truncation import DROP_ADVICE
from .chat_fields import ChatBody, checked_messages, counted
from .hidden_states import check_rows, check_states, with_states

__all__ = ["complete", "count", "delta_fields", "openai_logprob", "ranked"]


async def complete(context: RequestContext[ChatBody]) -> Reply | Events:
    """Answer a conversation."""
    body = context.body
    engine = context.engine(body.model)
    work = await context.prepared(body.work, engine, context)
    work = structs.replace(work, messages=await context.with_images(work.messages))
    work, turn = begin_turn(context, engine, work, body)
    layers = check_states(context, engine, work)
    if layers is not None:
        work = structs.replace(work, wants_prompt_ids=True)
    answer = ResponseStream(context, context.submit(engine, work), advice=DROP_ADVICE, turn=turn)
    await answer.start()
    shape = _Shape(body, body.model or context.model, context.service.version)
    if body.stream:
        return event_stream(shape.pieces(answer), Dialect.OPENAI)
    if layers is None:
        return Reply.json(await shape.whole(answer))
    check_rows(answer, layers)
    whole = await shape.whole(answer)
    return Reply.json(await with_states(engine, answer, whole, shape.token_ids, layers))


async def count(context: RequestContext[ChatBody]) -> Reply:
    """Count the prompt tokens of a conversation."""
    body = context.body
    messages, options = await context.prepared(
        lambda: (checked_messages(body.messages, context), body.options(context))
    )
    values = {"messages": await context.with_images(messages), "options": options}
    return Reply.json(await counted(context, context.engine(body.model), values))


class _Shape:
    """Builds one answer in OpenAI's format."""

    def __init__(self, body: ChatBody, model: str, version: str) -> None:
        self._body = body
        self._shows_logprobs = body.n_logprobs() is not None
        self._logprob = probability if body.post_sampling_probs else openai_logprob
        self._n_new = 0
        self._first_s = 0.0
        self.token_ids: dict[int, list[int]] = {}  # by choice
        self._head = {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"quire-{version}",
            **shown_tier(body.service_tier),
        }

    async def whole(self, answer: ResponseStream) -> dict[str, Any]:
        """Collect the answer into one object."""
        parts = [Message(self._logprob) for _ in range(self._body.n)]
        of_prompt: list[Any] | None = None if self._body.prompt_logprobs is None else [None]
        async for delta in answer.deltas():
            parts[delta.choice].add(delta)
            self.token_ids.setdefault(delta.choice, []).extend(delta.token_ids)
            if of_prompt is not None:
                of_prompt += [sse.raw(ranked(token)) for token in delta.prompt_logprobs]
        choices = [
            {
                "index": i,
                "message": part.openai(),
                "logprobs": {"content": part.logprobs, "refusal": None} if self._shows_logprobs else None,
                "finish_reason": answer.ends[i].reason,
            }
            for i, part in enumerate(parts)
        ]
        timings = timings_of(answer.ends[0])
        shown = {} if of_prompt is None else {"prompt_logprobs": of_prompt}
        return {**self._head, "choices": choices, "usage": answer.usage.openai(), "timings": timings, **shown}

    async def pieces(self, answer: ResponseStream) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events."""
        head = {**self._head, "object": "chat.completion.chunk"}
        options = self._body.stream_options
        wants_usage = options is not None and options.include_usage
        usage: dict[str, Any] = {"usage": None} if wants_usage else {}

        def chunk(choice: int, delta: dict[str, Any], reason: str | None, logprobs: Any = None, **more: Any) -> bytes:
            one = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            return sse.event({**head, "choices": [one], **usage, **more})

        yield b"".join(chunk(i, {"role": "assistant", "content": ""}, None) for i in range(self._body.n))
        async for batch in answer.batches():
            pieces = []
            for event in batch:
                if isinstance(event, Finished):
                    pieces.append(chunk(event.choice, {}, event.reason, timings=timings_of(event)))
                elif event.n_read is not None:
                    more = {"prompt_progress": progress_of(answer.stream, answer.usage.n_prompt, event.n_read)}
                    if self._body.timings_per_token:
                        more["timings"] = reading_so_far(answer.stream, event.n_read)
                    pieces.append(chunk(0, {}, None, **more))
                else:
                    more = self._so_far(answer, event)
                    if (new := delta_fields(event)) or event.logprobs:
                        shown = {"content": [self._logprob(token) for token in event.logprobs], "refusal": None}
                        pieces.append(chunk(event.choice, new, None, shown if event.logprobs else None, **more))
            yield b"".join(pieces)
        if wants_usage:
            timings = timings_of(answer.ends[0])
            yield sse.event({**head, "choices": [], "usage": answer.usage.openai(), "timings": timings})
        yield sse.DONE

    def _so_far(self, answer: ResponseStream, event: Delta) -> dict[str, Any]:
        """Return figures of the answer so far, if the request wants them in every event."""
        body, usage = self._body, answer.usage
        self._n_new += len(event.token_ids)
        self._first_s = self._first_s or time.monotonic()
        more: dict[str, Any] = {}
        if body.timings_per_token:
            more["timings"] = timings_so_far(answer.stream, usage.n_prompt, self._n_new, self._first_s)
        if body.stream_options is not None and body.stream_options.continuous_usage_stats:
            more["usage"] = Usage(usage.n_prompt, answer.stream.n_cached, self._n_new).openai()
        return more


def delta_fields(delta: Delta) -> dict[str, Any]:
    """Return a delta in OpenAI's format."""
    new: dict[str, Any] = {}
    if delta.content:
        new["content"] = delta.content
    if delta.reasoning:
        new["reasoning_content"] = delta.reasoning
    if delta.calls:
        new["tool_calls"] = [_call_fields(call) for call in delta.calls]
    return new


def _call_fields(call: CallDelta) -> dict[str, Any]:
    fields: dict[str, Any] = {"index": call.index, "function": {"arguments": call.arguments}}
    if call.id is not None:
        fields |= {"id": call.id, "type": "function"}
    if call.name is not None:
        fields["function"]["name"] = call.name
    return fields


def openai_logprob(token: Logprob) -> dict[str, Any]:
    """Return a token's log-probability in the format of chats."""
    top = [{"token": _text(shown), "logprob": p, "bytes": list(shown)} for _, shown, p in token.top]
    return {"token": _text(token.shown), "logprob": token.logprob, "bytes": list(token.shown), "top_logprobs": top}


def ranked(token: Logprob) -> dict[str, Any]:
    """Return a prompt token and its alternatives in vLLM's format; a rank beyond the alternatives is null."""

    def one(shown: bytes, p: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": p, "rank": rank, "decoded_token": _text(shown)}

    found = {str(id_): one(shown, p, rank) for rank, (id_, shown, p) in enumerate(token.top, 1)}
    own = str(token.token_id)
    return {own: found.get(own) or one(token.shown, token.logprob, None), **found}


def _text(shown: bytes) -> str:
    return shown.decode("utf-8", "replace")
