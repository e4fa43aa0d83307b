"""The fields of a request to ``/v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ....params.structured import StructuredOutputsParams
from ...body_types import Body
from ..fields import ConstrainedBody, Name, Text, Tools
from ..sampling_fields import limits_of, sampling_fields
from ..truncation import Truncation

__all__ = ["ResponsesBody"]


class Reasoning(Body, kw_only=True, forbid_unknown_fields=True):
    """How much the model should think."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"summary": (), "generate_summary": ()}


class TextFields(Body, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer: ``text``, ``json_object``, or ``json_schema`` together with ``schema``."""

    format: dict[str, Any] | None = None
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"verbosity": ("medium",)}

    def form(self) -> StructuredOutputsParams | None:
        """Convert the format to that of other routes, where the schema is nested one level deeper."""
        given = dict(self.format or {"type": "text"})
        if given.get("type") == "json_schema":
            inner = {name: value for name, value in given.items() if name != "type"}
            given = {"type": "json_schema", "json_schema": inner}
        return StructuredOutputsParams.from_response_format(given)


class ConversationId(Body, kw_only=True, forbid_unknown_fields=True):
    """A conversation by its id."""

    id: Annotated[str, Meta(max_length=64)]


@sampling_fields("responses")
class ResponsesBody(ConstrainedBody, kw_only=True, forbid_unknown_fields=True):
    """A request in OpenAI's format."""

    input: Text | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    example: ClassVar[dict[str, object]] = {"input": "What is the capital of France?", "max_output_tokens": 64}
    model: Name | None = None
    instructions: Text | None = None
    previous_response_id: Annotated[str, Meta(max_length=64)] | None = None
    conversation: Annotated[str, Meta(max_length=64)] | ConversationId | None = None
    max_output_tokens: Annotated[int, limits_of("max_tokens")] | None = None
    tools: Tools = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    reasoning: Reasoning | None = None
    text: TextFields | None = None
    truncation: Truncation = "disabled"
    stream: bool = False
    background: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    store: bool = True
    metadata: Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] = {}
    user: Annotated[str, Meta(max_length=512)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    inner: ClassVar[dict[str, type[Body]]] = {"reasoning": Reasoning, "text": TextFields}
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        **ConstrainedBody.hints,
        "prompt_cache_retention": ("in_memory", "in-memory"),
        "client_metadata": (),
        # Additional output that is not supported.
        "include": ([],),
        "stream_options": ({}, {"include_obfuscation": False}),
    }
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "prompt": (),
        "top_logprobs": (0,),
    }

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation."""
        return self.conversation.id if isinstance(self.conversation, ConversationId) else self.conversation
