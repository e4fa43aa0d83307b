"""Shared by routes that read texts and return vectors or scores: truncation fields and calls to the engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from ..body_types import Body
from ..failures import ApiError
from ..listener.request_context import RequestContext
from ..worker.engine_client import EngineClient
from ..worker.protocol import Embed, Score, Tag, TextRules
from .truncation import explain_length

__all__ = ["MAX_TEXTS", "CutBody", "PromptedBody", "asked_together"]

MAX_TEXTS = 2048
# How the engine names the input at fault.
_PLACE = re.compile(r"\[(?:chat|rerank)\] (messages|query|document)[\w.\[\]]*: ")
_AT_ONCE = 64  # texts of one call in the engine, so that other callers get their turn
PromptName: TypeAlias = Annotated[str, Meta(max_length=256)]


class CutBody(Body, kw_only=True, forbid_unknown_fields=True):
    """Options for texts that are too long.  They are rejected unless a field asks to cut them.

    ``truncate`` is TEI's and Ollama's, or Cohere's ``START`` or ``END``, the end at which tokens are dropped.
    ``truncation`` is Voyage's.  ``truncate_prompt_tokens`` is vLLM's: the number of tokens to keep, or -1 for the whole
    context.
    """

    truncate: bool | Literal["NONE", "START", "END"] = False
    truncation: bool = False
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=1 << 24)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    def rules(self) -> TextRules:
        """Return the rules for texts.  ApiError 400 for a number that keeps nothing."""
        kept = self.truncate_prompt_tokens
        if kept == 0:
            text = "truncate_prompt_tokens is 0: expected -1, or 1 or more"
            raise ApiError(400, "invalid_value", text, "truncate_prompt_tokens")
        truncate: bool | int = self.truncation or self.truncate not in (False, "NONE")
        if kept is not None:
            truncate = True if kept < 0 else kept
        side = self.truncation_side or self.truncation_direction or ("left" if self.truncate == "START" else "right")
        return TextRules(truncate, "left" if side in ("left", "Left") else "right")


class PromptedBody(CutBody, kw_only=True, forbid_unknown_fields=True):
    """A choice of the model's prompt to put before each text, by its name or as the kind of input."""

    prompt_name: PromptName | None = None
    input_type: PromptName | None = None

    def rules(self) -> TextRules:
        cut = super().rules()
        return TextRules(cut.truncate, cut.side, self.prompt_name, self.input_type)


async def asked_together(
    context: RequestContext[Any],
    engine: EngineClient,
    works: Sequence[Embed | Score | Tag],
    fields: Sequence[Mapping[str, str]] = (),
) -> list[dict[str, Any]]:
    """Return the answers in order, and count their tokens.

    ``fields``: for each work, the route's names of what the engine calls messages, query or document.
    """
    answers: list[dict[str, Any]] = []
    for first in range(0, len(works), _AT_ONCE):
        for stream in [context.submit(engine, work) for work in works[first : first + _AT_ONCE]]:
            try:
                answer = await stream.answer()
            except ApiError as error:
                if fields:
                    _name_field(error, fields[len(answers)])
                explain_length(error, context, 'shorten the text, ask for it to be cut ("truncate": true)')
                raise
            answers.append(answer)
            context.service.metrics.embedded(answer["n_tokens"], answer["n_cached_tokens"], answer["seconds"])
    n_tokens = sum(answer["n_tokens"] for answer in answers)
    context.ticket.charge(n_tokens)
    context.state.usage = {"prompt_tokens": n_tokens, "generated_tokens": 0}
    return answers


def _name_field(error: ApiError, fields: Mapping[str, str]) -> None:
    """Let an error of the engine name the route's field."""
    found = _PLACE.match(error.message)
    if found is not None and found[1] in fields:
        error.param = fields[found[1]]
        error.message = f"{error.param}: {error.message[found.end() :]}"
