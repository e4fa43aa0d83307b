"""What the routes share that read texts and give vectors or scores: fields of reading, and asking the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from ..body_types import Body
from ..failures import ApiError
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.protocol import Embed, Score, TextRules
from .truncation import explain_length

__all__ = ["MAX_TEXTS", "CutBody", "PromptedBody", "asked_together"]

MAX_TEXTS = 2048
_AT_ONCE = 64  # of one call in the engine, so that other callers get their turn
PromptName: TypeAlias = Annotated[str, Meta(max_length=256)]


class CutBody(Body, kw_only=True, forbid_unknown_fields=True):
    """What is done with a text that is too long: it is refused unless a field says that it is cut.

    ``truncate``: TEI's and Ollama's, or Cohere's ``START`` and ``END``, where tokens are left out; ``truncation``:
    Voyage's; ``truncate_prompt_tokens``: vLLM's, how many tokens are kept, -1 for as many as the context has.
    """

    truncate: bool | Literal["NONE", "START", "END"] = False
    truncation: bool = False
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=1 << 24)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    def rules(self) -> TextRules:
        """ApiError 400 for a number that keeps nothing."""
        kept = self.truncate_prompt_tokens
        if kept == 0:
            text = "truncate_prompt_tokens must be -1 or at least 1 but is 0"
            raise ApiError(400, "invalid_value", text, "truncate_prompt_tokens")
        truncate: bool | int = self.truncation or self.truncate not in (False, "NONE")
        if kept is not None:
            truncate = True if kept < 0 else kept
        side = self.truncation_side or self.truncation_direction or ("left" if self.truncate == "START" else "right")
        return TextRules(truncate, "left" if side in ("left", "Left") else "right")


class PromptedBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """What goes before a text: one of the makers' prompts, by its name or by what others call that kind of text."""

    prompt_name: PromptName | None = None
    input_type: PromptName | None = None

    def rules(self) -> TextRules:
        cut = super().rules()
        return TextRules(cut.truncate, cut.side, self.prompt_name, self.input_type)


async def asked_together(
    context: RequestContext[Any], engine: EngineClient, works: Sequence[Embed | Score]
) -> list[dict[str, Any]]:
    """The answers, in their order; tokens are counted."""
    answers: list[dict[str, Any]] = []
    for first in range(0, len(works), _AT_ONCE):
        for stream in [context.submit(engine, work) for work in works[first : first + _AT_ONCE]]:
            try:
                answer = await stream.answer()
            except ApiError as error:
                explain_length(error, context, 'shorten the text, ask for it to be cut ("truncate": true)')
                raise
            answers.append(answer)
            context.service.metrics.embedded(answer["n_tokens"], answer["n_cached_tokens"], answer["seconds"])
    n_tokens = sum(answer["n_tokens"] for answer in answers)
    context.ticket.charge(n_tokens)
    context.state.usage = {"prompt_tokens": n_tokens, "generated_tokens": 0}
    return answers
