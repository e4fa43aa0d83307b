"""The fields of ``/v1/chat/completions``."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ....params.sampling_defaults import chat_defaults, most_prompt_tokens
from ...failures import ApiError
from ...listener.request_context import RequestContext
from ...worker.engine_client import EngineClient
from ...worker.params import set_fields
from ...worker.protocol import Ask, Chat, ModelInfo
from ..fields import SharedFields, Tools
from ..known_fields import functions_of, leave_out
from ..sampling_fields import TopCount, check_alternatives
from ..stages import stages_of, with_last
from ..text_parts import without_billing_line
from ..truncation import Truncation

__all__ = ["ChatBody", "StreamOptions", "checked_messages", "counted", "one_of", "options_of"]

Limit: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1, extra_json_schema={"not": {"const": 0}})]
Stage: TypeAlias = Annotated[str, Meta(max_length=32)]


class StreamOptions(msgspec.Struct):
    """Options of a stream.

    ``include_usage`` sends the usage in the last event before ``[DONE]``; ``continuous_usage_stats`` sends the usage so
    far in every event.  ``include_obfuscation`` has no effect: no padding is ever sent.
    """

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class TextPart(msgspec.Struct):
    """A part of a predicted text."""

    text: str
    type: Literal["text"] = "text"


class Prediction(msgspec.Struct):
    """A text that the answer is expected to resemble."""

    content: str | Annotated[list[TextPart], Meta(max_length=4096)]
    type: Literal["content"] = "content"

    def text(self) -> str:
        """Return the whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(SharedFields, kw_only=True, forbid_unknown_fields=True):
    """A request in OpenAI's format, with Quire's sampling and template fields, also under llama.cpp's names."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    example: ClassVar[dict[str, object]] = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 64,
    }
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    n_predict: Limit | None = None
    tools: Tools = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    parse_tool_calls: bool = True
    logprobs: bool | Literal[0, 1] = False
    top_logprobs: TopCount | None = None
    n_probs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    prompt_logprobs: TopCount | None = None
    samplers: Annotated[list[Stage], Meta(max_length=32)] | Stage | None = None
    stream_options: StreamOptions | None = None
    prediction: Prediction | None = None
    timings_per_token: bool = False
    return_progress: bool = False
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    reasoning_format: Annotated[str, Meta(max_length=32)] | None = None
    reasoning_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    reasoning_budget_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    thinking_budget_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    enable_thinking: bool | None = None
    think: bool | Literal["low", "medium", "high", "xhigh", "max"] | None = None
    thinking: ThinkingSwitch | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] = {}
    chat_template: Annotated[str, Meta(max_length=1 << 17)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    truncation: Truncation = "disabled"
    cache_prompt: bool = True
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        **SharedFields.hints,
        "verbosity": ("medium",),
        "reasoning_control": (False,),
        "reasoning_budget_message": ("",),
        "chat_format": (),
        "chat_template_content_format": ("auto",),
    }
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        **SharedFields.refused,
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("none",),
        "documents": ([],),
        "echo": (False,),
        "include_reasoning": (True,),
        "best_of": (1,),
    }

    def usual(self, info: ModelInfo, given: dict[str, Any]) -> dict[str, Any]:
        """Return the defaults of a chat."""
        return chat_defaults(info.advised, given)

    def given(self) -> dict[str, Any]:
        """Return the parameters that the body gives."""
        given = super().given()
        if self.prediction is not None:
            given["prediction"] = self.prediction.text()
        if self.samplers is not None:
            given["samplers"] = with_last(stages_of(self.samplers), given)
        return given

    def limit(self) -> int | None:
        """Return the most tokens to generate; None for no limit."""
        names = ("max_completion_tokens", "max_tokens", "n_predict")
        wanted: int | None = one_of(self, *names)
        if wanted == 0:
            raise ApiError(400, "invalid_value", "max_tokens is 0: expected 1 or more", "max_tokens")
        return None if wanted is None or wanted < 0 else wanted

    def n_logprobs(self) -> int | None:
        """Return the number of alternatives for each token; None for no log-probabilities."""
        if self.top_logprobs and not self.logprobs:
            text = "top_logprobs requires logprobs"
            raise ApiError(400, "invalid_value", text, "top_logprobs")
        if self.logprobs:
            return self.top_logprobs if self.top_logprobs is not None else self.n_probs or 0
        return self.n_probs or None

    def work(self, engine: EngineClient, context: RequestContext[ChatBody]) -> Chat:
        """Return the engine's work for the request."""
        given = {name: getattr(self, name) for name in ("top_logprobs", "n_probs", "prompt_logprobs")}
        check_alternatives(context, **given)
        if self.stream and self.prompt_logprobs is not None:
            text = "prompt_logprobs cannot be combined with stream"
            raise ApiError(400, "invalid_value", text, "prompt_logprobs")
        params = self.params(
            engine.info,
            self.limit(),
            logprobs=self.n_logprobs(),
            prompt_logprobs=self.prompt_logprobs,
            structured_outputs=self.wanted_form(),
        )
        hints = self.hints_for(context.caller)
        if not self.cache_prompt:
            hints = msgspec.structs.replace(hints, salt=os.urandom(32))
        messages = checked_messages(self.messages, context)
        options = self.options(context)
        if self.truncation == "auto":
            options["max_prompt_tokens"] = most_prompt_tokens(engine.info.n_ctx, params.max_tokens)
        return Chat(0, messages, options, set_fields(params), hints, self.return_progress and self.stream)

    def options(self, context: RequestContext[ChatBody]) -> dict[str, Any]:
        """Return fields of ``ChatOptions``."""
        options = options_of(self.tools, self.tool_choice, context, self._template_values(context))
        if self.chat_template is not None:
            if not context.service.settings.trust_request_chat_template:
                text = "chat_template of requests is turned off (quire serve --trust-request-chat-template)"
                raise ApiError(400, "unsupported_parameter", text, "chat_template")
            options["chat_template"] = self.chat_template
        if not self.parallel_tool_calls:
            options["parallel_tool_calls"] = False
        if not self.parse_tool_calls:
            options["tool_format"] = "none"
        if self.reasoning_format is not None:
            # llama.cpp's "deepseek" means to separate reasoning from the answer.
            apart = self.reasoning_format in ("deepseek", "deepseek-legacy", "")
            options["reasoning_format"] = "auto" if apart else self.reasoning_format
        budget = one_of(self, "reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens")
        if budget is not None and budget >= 0:
            options["reasoning_budget"] = budget
        if self.continue_final_message:
            if self.add_generation_prompt:
                text = "continue_final_message cannot be combined with add_generation_prompt"
                raise ApiError(400, "invalid_value", text, "continue_final_message")
            options["continue_final_message"] = True
        elif self.add_generation_prompt is False:
            options["add_generation_prompt"] = False
        return options

    def _template_values(self, context: RequestContext[ChatBody]) -> dict[str, Any]:
        """Return the template's variables, including thinking; ``chat_template_kwargs`` take precedence."""
        values: dict[str, Any] = {}

        def say(name: str, value: Any, field: str) -> None:
            values[name] = value
            context.said_by[name] = field

        if self.reasoning_effort is not None:
            if self.reasoning_effort == "none":
                say("enable_thinking", False, "reasoning_effort")
            else:
                say("reasoning_effort", self.reasoning_effort, "reasoning_effort")
        if self.thinking is not None:
            say("enable_thinking", self.thinking.type != "disabled", "thinking")
        if isinstance(self.think, str):
            say("reasoning_effort", "high" if self.think == "max" else self.think, "think")
        elif self.think is not None:
            say("enable_thinking", self.think, "think")
        if self.enable_thinking is not None:
            say("enable_thinking", self.enable_thinking, "enable_thinking")
        for name, value in self.chat_template_kwargs.items():
            say(name, value, f"chat_template_kwargs.{name}")
        return values


class ThinkingSwitch(msgspec.Struct):
    """Turns thinking on or off, in some clients' format."""

    type: Literal["enabled", "disabled", "adaptive", "auto"] = "enabled"


def one_of(body: Any, *names: str) -> Any:
    """Return the value of a field that has several names.  ApiError 400 if they disagree."""
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if len(set(given.values())) > 1:
        first, second, *_ = given
        text = f"{second} and {first} disagree: give only one"
        raise ApiError(400, "invalid_value", text, second)
    return next(iter(given.values()), None)


_MESSAGE_KEYS = frozenset(
    (
        "role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking",
        "refusal", "function_call",
    )
)  # fmt: skip
# Fields of an answer that clients send back but no template shows: annotations, and audio stored only by OpenAI.
_UNREAD = frozenset(("annotations", "audio"))


def checked_messages(messages: list[dict[str, Any]], context: RequestContext[Any]) -> list[dict[str, Any]]:
    """Return the messages with roles that templates know: OpenAI's newer ``developer`` becomes ``system``.

    An unknown field is kept and noted, because a template may read it; ApiError 400 if the server is strict.
    """
    for i, message in enumerate(messages):
        for name, value in message.items():
            if name in _MESSAGE_KEYS or value is None or (name in _UNREAD and not value):
                continue
            at = f"messages[{i}].{name[:64]}"
            if name == "audio":
                raise ApiError(400, "unsupported_parameter", f"{at} is not supported: give the text that was said", at)
            if name not in _UNREAD and context.service.settings.refuses_unknown:
                raise ApiError(400, "unknown_parameter", f"unknown message field {at!r}", at)
            context.ignore(at)
    shown = [_with_functions(message) for message in messages]
    made = [{**m, "role": "system"} if m.get("role") == "developer" else m for m in shown]
    kept = without_billing_line(made)
    if kept is not made:
        context.ignore("x-anthropic-billing-header")
    return kept


def _with_functions(message: dict[str, Any]) -> dict[str, Any]:
    """Turn calls of custom tools, which take a text, into function calls with one argument."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(isinstance(c, dict) and c.get("type") == "custom" for c in calls):
        return message
    return {**message, "tool_calls": [_as_function(call) for call in calls]}


def _as_function(call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
        return call
    arguments = msgspec.json.encode({"input": custom.get("input")}).decode()
    return {"id": call.get("id"), "type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}


async def counted(context: RequestContext[Any], engine: EngineClient, values: dict[str, Any]) -> dict[str, Any]:
    """Count tokens and return the answer; ``values`` has ``messages`` and ``options`` of a ``Chat``."""
    answer = await context.ask(engine, Ask(0, "count", values))
    context.note(answer["ignored"])
    return {"object": "response.input_tokens", "input_tokens": answer["n_tokens"]}


def options_of(
    tools: list[dict[str, Any]], tool_choice: Any, context: RequestContext[Any], template_values: dict[str, Any]
) -> dict[str, Any]:
    """Return fields of ``ChatOptions``.  A tool choice without tools has no effect."""
    options: dict[str, Any] = {"template_values": template_values}
    given, tools = tools, functions_of(tools, context)
    names_function = isinstance(tool_choice, dict) and tool_choice.get("type") in ("function", "allowed_tools")
    if len(tools) < len(given) and isinstance(tool_choice, dict) and not names_function:
        leave_out(context, "tool_choice")
        tool_choice = None
    if not context.service.settings.refuses_unknown:
        options["lenient"] = True
    if isinstance(tool_choice, dict) and tool_choice.get("type") == "allowed_tools":
        tools, tool_choice = _allowed(tools, tool_choice.get("allowed_tools"))
    if tools:
        options["tools"] = tools
    if tool_choice == "any":  # Mistral's word
        tool_choice = "required"
    if tool_choice is not None and tools:
        options["tool_choice"] = tool_choice
    elif tool_choice not in (None, "auto", "none"):
        context.ignore("tool_choice")
    return options


def _allowed(tools: list[dict[str, Any]], given: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the tools that may be called, and the mode; only these are shown to the model.  ApiError 400."""
    place = "tool_choice.allowed_tools"
    mode, listed = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else (None, None)
    if mode not in ("auto", "required"):
        raise ApiError(400, "invalid_value", f"unsupported {place}.mode: expected auto or required", f"{place}.mode")
    names = [_name_of(tool) for tool in listed] if isinstance(listed, list) else []
    known = {_name_of(tool) for tool in tools} - {None}
    if not names or not known.issuperset(names):
        text = f"{place}.tools names no function in tools"
        raise ApiError(400, "invalid_value", text, f"{place}.tools")
    return [tool for tool in tools if _name_of(tool) in names], mode


def _name_of(tool: Any) -> str | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
