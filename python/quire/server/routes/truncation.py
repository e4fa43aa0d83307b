"""Prompts longer than the context: rejected with advice, or shortened if the request asks for it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from ..failures import ApiError, Dialect
from ..listener.request_context import RequestContext

__all__ = ["DROP_ADVICE", "Truncation", "explain_length"]

Truncation: TypeAlias = Literal["auto", "disabled"]
"""Drop the oldest turns of a conversation that does not fit, or reject it."""

DROP_ADVICE = 'shorten the conversation, drop its oldest turns ("truncation": "auto")'


def explain_length(error: ApiError, context: RequestContext[Any], advice: str) -> None:
    """Reword the error for a prompt that is too long in the dialect's terms, which clients look for, and add advice."""
    if error.code != "context_length_exceeded":
        return
    n, n_ctx = error.details["n_prompt_tokens"], error.details["n_ctx"]
    said = {
        Dialect.OPENAI: f"the prompt has {n} tokens, but this model's maximum context length is {n_ctx} tokens",
        Dialect.ANTHROPIC: f"prompt is too long: {n} tokens > {n_ctx} maximum",
        Dialect.LLAMA_CPP: f"the request ({n} tokens) exceeds the available context size ({n_ctx} tokens)",
        Dialect.OLLAMA: f"the prompt is too long: {n} tokens exceed the context length of {n_ctx}",
    }[context.state.dialect]
    info, _ = context.service.info(context.opened_model)
    larger = "" if info.n_ctx_train <= n_ctx else f" (the model was trained on {info.n_ctx_train})"
    error.message = f"{said}: {advice}, or start the server with a larger --ctx-size{larger}"
