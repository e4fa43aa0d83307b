"""Answers in the shape of llama-cpp-python: dictionaries as in OpenAI's API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...engine.requests.chat import ChatDelta, ChatResult
    from ...engine.requests.results import Delta, GenerationResult, TokenLogprob
    from ...tokenizer import Tokenizer

__all__ = ["chat_chunks", "chat_completion", "completion", "completion_chunks", "usage"]


def usage(n_prompt: int, n_new: int) -> dict[str, int]:
    """Return token counts."""
    return {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}


def _head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()), "model": model}


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.decode([token_id], skip_special=False)


def _columns(
    tokenizer: Tokenizer, token_ids: Sequence[int], tokens: Sequence[TokenLogprob | None], offset: int
) -> dict[str, list[Any]]:
    """Return log-probabilities in columns, as in completions."""
    shown = [_text(tokenizer, token_id) for token_id in token_ids]
    starts = [offset + sum(map(len, shown[:i])) for i in range(len(shown))]
    return {
        "tokens": shown,
        "text_offset": starts,
        "token_logprobs": [None if token is None else token.logprob for token in tokens],
        "top_logprobs": [None if token is None else _top(tokenizer, token) for token in tokens],
    }


def _top(tokenizer: Tokenizer, token: TokenLogprob) -> dict[str, float]:
    """Return the most likely tokens, and the drawn one if it is none of them."""
    top = {_text(tokenizer, id_): p for id_, p in token.top}
    top.setdefault(_text(tokenizer, token.token_id), token.logprob)
    return top


def completion(
    result: GenerationResult, model: str, tokenizer: Tokenizer, *, echoed: str, suffix: str
) -> dict[str, Any]:
    """Return a whole completion."""
    choices = []
    for choice in result.choices:
        logprobs = None
        if choice.logprobs is not None:
            logprobs = _columns(tokenizer, choice.token_ids, choice.logprobs, len(echoed))
            if echoed and result.prompt_logprobs is not None:
                before = _columns(tokenizer, result.prompt_token_ids, result.prompt_logprobs, 0)
                logprobs = {name: before[name] + column for name, column in logprobs.items()}
        text = echoed + choice.text + suffix
        choices.append(
            {"text": text, "index": choice.index, "logprobs": logprobs, "finish_reason": choice.finish_reason}
        )
    n_new = sum(len(choice.token_ids) for choice in result.choices)
    return {
        **_head("cmpl", "text_completion", model),
        "choices": choices,
        "usage": usage(result.n_prompt_tokens, n_new),
    }


def completion_chunks(
    deltas: Iterable[Delta], model: str, tokenizer: Tokenizer, *, echoed: str, suffix: str
) -> Iterator[dict[str, Any]]:
    """Yield a completion piece by piece."""
    head = _head("cmpl", "text_completion", model)

    def chunk(text: str, reason: str | None, logprobs: Any = None) -> dict[str, Any]:
        return {**head, "choices": [{"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}]}

    offset = len(echoed)
    if echoed:
        yield chunk(echoed, None)
    for delta in deltas:
        if delta.text or delta.logprobs:
            shown = _columns(tokenizer, delta.token_ids, delta.logprobs, offset) if delta.logprobs else None
            offset += len(delta.text)
            yield chunk(delta.text, None, shown)
        if delta.finish_reason is not None:
            yield chunk(suffix, delta.finish_reason)


def _listed(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return log-probabilities in a list, as in chats."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token_id)
        return {"token": _text(tokenizer, token_id), "bytes": list(raw), "logprob": logprob}

    content = [
        {**one(token.token_id, token.logprob), "top_logprobs": [one(id_, p) for id_, p in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def chat_completion(result: ChatResult, model: str, tokenizer: Tokenizer, *, as_function: bool) -> dict[str, Any]:
    """Return an answer to a conversation.  ``as_function``: with calls in the older form."""
    choices = []
    for choice in result.choices:
        message: dict[str, Any] = {**choice.message.as_dict(), "content": choice.message.content}
        reason: str = choice.finish_reason
        if as_function and choice.message.tool_calls:
            function = choice.message.tool_calls[0].function
            message["function_call"] = {"name": function.name, "arguments": function.arguments}
            del message["tool_calls"]
            reason = "function_call"
        logprobs = None if choice.logprobs is None else _listed(tokenizer, choice.logprobs)
        choices.append({"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    n_new = sum(len(choice.token_ids) for choice in result.choices)
    return {
        **_head("chatcmpl", "chat.completion", model),
        "choices": choices,
        "usage": usage(result.n_prompt_tokens, n_new),
    }


def chat_chunks(
    deltas: Iterable[ChatDelta], model: str, tokenizer: Tokenizer, *, as_function: bool
) -> Iterator[dict[str, Any]]:
    """Yield an answer to a conversation; the first piece has the role, the last the finish reason."""
    head = _head("chatcmpl", "chat.completion.chunk", model)

    def chunk(delta: dict[str, Any], reason: str | None, logprobs: Any = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]}

    yield chunk({"role": "assistant"}, None)
    for delta in deltas:
        new: dict[str, Any] = {}
        if delta.content:
            new["content"] = delta.content
        if delta.reasoning_content:
            new["reasoning_content"] = delta.reasoning_content
        for call in delta.tool_calls:
            function = {"name": call.name, "arguments": call.arguments}
            if as_function:
                new["function_call"] = function
            else:
                shown = {"index": call.index, "id": call.id, "type": "function", "function": function}
                new.setdefault("tool_calls", []).append(shown)
        if new or delta.logprobs:
            yield chunk(new, None, _listed(tokenizer, delta.logprobs) if delta.logprobs else None)
        if delta.finish_reason is not None:
            called = as_function and delta.finish_reason == "tool_calls"
            yield chunk({}, "function_call" if called else delta.finish_reason)
