"""Prompts that are longer than the context: refused with what to do, or cut where the request says so."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from ..failures import ApiError, Dialect
from ..listener.request_context import RequestContext

__all__ = ["DROP_ADVICE", "Truncation", "explain_length"]

Truncation: TypeAlias = Literal["auto", "disabled"]
"""The choice to drop the oldest turns of a conversation that does not fit, or to refuse it."""

DROP_ADVICE = 'shorten the conversation, have its oldest turns dropped ("truncation": "auto")'


def explain_length(error: ApiError, context: RequestContext[Any], advice: str) -> None:
    """Say in a dialect's own words, which clients look for, that a prompt is too long, and what can be done."""
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
