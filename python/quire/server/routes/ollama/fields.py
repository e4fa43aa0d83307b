"""The fields of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta

from ....params.sampling import SamplingParams
from ....params.sampling_defaults import chat_defaults, most_prompt_tokens
from ....params.structured import StructuredOutputsParams
from ...body_types import Body
from ...failures import ApiError, brief
from ...keep_alive import seconds_of
from ...listener.request_context import RequestContext
from ...worker.protocol import ModelInfo
from ..fields import ConstrainedBody, Name, Stop, Stops, Text, Tools, stops_of
from ..known_fields import check_fields
from ..sampling_fields import sampling_fields, sampling_of
from ..text_parts import Shown, content_of, image_part
from .memory import MOST_NUMBERS, conversation_of

__all__ = [
    "Answered",
    "ChatBody",
    "GenerateBody",
    "KeepAlive",
    "ModelBody",
    "Options",
    "check_keep_alive",
    "keep_alive_s",
    "name_of",
]


Limit: TypeAlias = Annotated[int, Meta(ge=-2, le=2**31 - 1)]
KeepAlive: TypeAlias = Annotated[float, Meta(ge=-1e18, le=1e18)] | Annotated[str, Meta(max_length=64)]
Think: TypeAlias = bool | Literal["low", "medium", "high", "xhigh", "max"]


@sampling_fields("ollama")
class Options(Body, kw_only=True, forbid_unknown_fields=True):
    """Sampling options.

    ``num_ctx`` is the context that the model should be loaded with.  ``num_keep`` is the number of tokens to keep at
    the beginning of a prompt that is cut.
    """

    num_predict: Limit = -1
    num_ctx: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    num_keep: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = 4
    stop: Stop | Stops | None = None
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        "draft_num_predict": (0,),
        "penalize_newline": (True,),
        # Fixed when the server starts.
        "num_batch": (),
        "num_gpu": (),
        "main_gpu": (),
        "num_thread": (),
        "use_mmap": (),
        "use_mlock": (),
        "numa": (),
        "low_vram": (),
        "f16_kv": (),
        "logits_all": (False,),
    }
    refused: ClassVar[dict[str, tuple[object, ...]]] = {"vocab_only": (False,)}

    def prompt_limit(self, info: ModelInfo) -> int:
        """Return the most prompt tokens that leave room for the answer."""
        return most_prompt_tokens(info.n_ctx, self.num_predict if self.num_predict > 0 else None)

    def params(self, info: ModelInfo, **further: Any) -> SamplingParams:
        """Return the parameters.  ApiError or RequestError naming an invalid field."""
        given = sampling_of(self)
        more = {
            "max_tokens": self.num_predict if self.num_predict > 0 else info.advised.get("max_tokens"),
            "stop": stops_of(self.stop),
        }
        return SamplingParams(**{**chat_defaults(info.advised, given), **given, **more, **further})


class Answered(ConstrainedBody, kw_only=True, forbid_unknown_fields=True):
    """Fields that ``/api/generate`` and ``/api/chat`` share."""

    model: Name
    stream: bool = True
    format: Text | dict[str, Any] | None = None
    hints: ClassVar[dict[str, tuple[object, ...]]] = {
        **ConstrainedBody.hints,
        # Context shifting is not supported: a full context ends the answer.
        "shift": (False,),
    }
    truncate: bool = True
    options: dict[str, Any] = {}
    keep_alive: KeepAlive | None = None
    think: Think | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "_debug_render_only": (False,),
    }

    def form(self) -> StructuredOutputsParams | None:
        """Return the form that the answer must have."""
        return self.wanted_form(self._own_form())

    def _own_form(self) -> StructuredOutputsParams | None:
        if isinstance(self.format, dict):
            return StructuredOutputsParams(json=self.format)
        if self.format not in (None, "", "json"):
            raise ApiError(400, "invalid_value", "unsupported format: expected json or a JSON schema", "format")
        return StructuredOutputsParams(json_object=True) if self.format == "json" else None

    def check(self) -> None:
        """Raise ApiError for an invalid combination of fields."""
        check_keep_alive(self.keep_alive)

    def n_logprobs(self) -> int | None:
        """Return the number of alternatives for each token; None for no log-probabilities."""
        if self.top_logprobs and not self.logprobs:
            text = "top_logprobs requires logprobs"
            raise ApiError(400, "invalid_value", text, "top_logprobs")
        return self.top_logprobs if self.logprobs else None

    def template_values(self) -> dict[str, Any]:
        """Return the template variables about thinking."""
        if self.think is None:
            return {}
        if isinstance(self.think, bool):
            return {"enable_thinking": self.think}
        return {"enable_thinking": True, "reasoning_effort": "high" if self.think == "max" else self.think}


def check_keep_alive(given: float | str | None) -> None:
    """Raise ApiError for an invalid duration."""
    keep_alive_s(given)


def keep_alive_s(given: float | str | None) -> float | None:
    """Return the seconds that a model should stay loaded; None for the server's default."""
    if given is None or given == "":
        return None
    try:
        return seconds_of(given)
    except ValueError as error:
        raise ApiError(400, "invalid_value", f"keep_alive: {error}, got {brief(given)}", "keep_alive") from None


class GenerateBody(Answered, kw_only=True, forbid_unknown_fields=True):
    """A prompt, which the model's template turns into a conversation unless ``raw`` is set."""

    prompt: Text = ""
    suffix: Text = ""
    system: Text = ""
    raw: bool = False
    images: Annotated[list[str], Meta(max_length=4096)] = []
    context: Annotated[list[Annotated[int, Meta(ge=0, le=0x10FFFF)]], Meta(max_length=MOST_NUMBERS)] = []
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        **Answered.refused,
        "template": ("",),
    }

    def check(self) -> None:
        """Raise ApiError for an invalid combination of fields."""
        super().check()
        alone = "suffix" if self.suffix else "raw"
        for name in ("system", "think", "context", *(("format", "images") if self.suffix else ())):
            if (self.suffix or self.raw) and getattr(self, name):
                text = f"{name} cannot be combined with {alone}"
                raise ApiError(400, "unsupported_parameter", text, name)

    def conversation(self) -> list[dict[str, Any]]:
        """Return the conversation that ``context`` continues, followed by the prompt."""
        earlier = conversation_of(self.context) if self.context else []
        system = {"role": "system", "content": self.system}
        if self.system and system not in earlier:
            earlier.append(system)
        return [*earlier, {"role": "user", "content": _with_images(self.images, self.prompt)}]


class ChatBody(Answered, kw_only=True, forbid_unknown_fields=True):
    """A conversation."""

    messages: Annotated[list[dict[str, Any]], Meta(max_length=4096)] = []
    example: ClassVar[dict[str, object]] = {
        "model": "tiny-chat",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": False,
    }
    tools: Tools = []

    def conversation(self, context: RequestContext[Any]) -> list[dict[str, Any]]:
        """Return the messages in the format of templates.  ApiError naming an invalid field."""
        for i, message in enumerate(self.messages):
            check_fields(message, (*_MESSAGE_KEYS, "images", "tool_name", "name"), f"messages[{i}]", context)
        return [_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)]


class ModelBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The model to show; older clients send ``name``."""

    model: Name | None = None
    name: Name | None = None
    verbose: bool = False


_MESSAGE_KEYS = ("role", "content", "thinking", "tool_calls", "tool_call_id")


def _message(message: dict[str, Any], place: str) -> dict[str, Any]:
    own = {name: message[name] for name in _MESSAGE_KEYS if message.get(name) is not None}
    if images := message.get("images"):
        if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
            place = f"{place}.images"
            raise ApiError(400, "invalid_value", f"{place}: expected a list of images in base64", place)
        own["content"] = _with_images(images, str(own.get("content") or ""))
    tool = message.get("tool_name") or message.get("name")
    return {**own, "name": tool} if tool else own


def _with_images(images: list[str], text: str) -> str | list[dict[str, Any]]:
    """Return content with images in base64 before a text."""
    # Ollama's clients send no type; the decoder looks at the bytes.
    shown: list[Shown] = [image_part(f"data:image/png;base64,{image}") for image in images]
    return content_of([*shown, text])


def name_of(model: str) -> str:
    """Return a model's name without the tag that Ollama's clients add."""
    return model.removesuffix(":latest")
