"""A plugin for the program ``llm``.  Needs a release of ``llm`` whose messages have parts.

``llm -m quire "Hi"`` asks the small model in the package, or that of ``-o path FILE``; ``llm -m quire/NAME`` asks one
of the models that ``quire list`` shows.  They embed texts as well.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any

from ..errors import RequestError, UnsupportedError
from ..hub.stores import stored_models
from ..params.sampling import PARAMETERS

try:
    import llm
    from llm.parts import Message, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
    from pydantic import Field, create_model
except ImportError as error:
    from .shared import absent

    raise absent("llm", "llm", error) from error

if TYPE_CHECKING:
    from ..engine import LLM, ChatDelta

__all__ = ["AsyncQuireModel", "QuireEmbeddingModel", "QuireModel", "register_embedding_models", "register_models"]

_PLACE = "llm"
# Types of the options for ``-o``: those that open a model, and keywords of ``LLM.chat``.
_OPENING: dict[str, type] = {"path": str, "n_ctx": int, "threads": int, "device": str, "draft": str}
_UNSHOWN = ("n", "logprobs", "prompt_logprobs", "processed_logprobs")  # results that the program does not show
_ASKING: dict[str, type] = {
    **{name: parameter.kind for name, parameter in PARAMETERS.items() if parameter.kind and name not in _UNSHOWN},
    "reasoning_budget": int, "parallel_tool_calls": bool, "stop": str, "regex": str, "grammar": str, "tool_choice": str,
    "tool_format": str, "reasoning_format": str,
}  # fmt: skip
_TYPES = {**_OPENING, **_ASKING}
_LOCK = threading.Lock()


def _option(name: str) -> Any:
    where = "to open the model with" if name in _OPENING else "as in quire.LLM.chat"
    about = PARAMETERS[name].doc if name in PARAMETERS else f"{name}, {where}"
    return Field(default=None, description=f"{about}.")


_Options: Any = create_model(
    "Options", __base__=llm.Options, **{name: (kind | None, _option(name)) for name, kind in _TYPES.items()}
)


@functools.cache
def _opened(path: str | None, options: tuple[tuple[str, Any], ...]) -> LLM:
    from ..engine import LLM

    return LLM(path, **dict(options))


class _Shared:
    """The common base of the blocking and the async model."""

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = _Options

    def __init__(self, model_id: str, path: str | None = None) -> None:
        self.model_id = model_id
        self._path = path

    def _asked(self, prompt: Any) -> tuple[LLM, list[dict[str, Any]], dict[str, Any]]:
        """Return the model, the conversation and the keywords of ``LLM.chat``."""
        given = {name: value for name, value in prompt.options.model_dump().items() if value is not None}
        opening = {name: given.pop(name) for name in _OPENING if name in given}
        path = opening.pop("path", None)
        if path is not None and self._path is not None:
            raise RequestError(
                f"[{_PLACE}] path {path!r:.80} is given, but {self.model_id} has a file of its own: use 'llm -m quire'"
            )
        if prompt.tools:
            given["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.schema:
            given["response_format"] = prompt.schema
        with _LOCK:
            model = _opened(path or self._path, tuple(sorted(opening.items())))
        return model, _messages(prompt.messages), given


class QuireModel(_Shared, llm.Model):
    """A model in this process."""

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any = None) -> Iterator[StreamEvent]:
        """Yield the answer piece by piece."""
        model, messages, options = self._asked(prompt)
        answer = _Answer(response)
        with closing(model.chat_stream(messages, **options)) as deltas:
            for delta in deltas:
                yield from answer.add(delta)


class AsyncQuireModel(_Shared, llm.AsyncModel):
    """``QuireModel`` for event loops."""

    async def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the answer piece by piece."""
        from .shared import awaited

        model, messages, options = self._asked(prompt)
        answer = _Answer(response)
        async with aclosing(awaited(model).chat_stream(messages, **options)) as deltas:
            async for delta in deltas:
                for event in answer.add(delta):
                    yield event


class QuireEmbeddingModel(llm.EmbeddingModel):
    """An embedding model; vectors have length 1."""

    batch_size = 32

    def __init__(self, model_id: str, path: str | None = None) -> None:
        self.model_id = model_id
        self._path = path

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        """Yield a vector for each text."""
        texts = [item.decode() if isinstance(item, bytes) else item for item in items]
        with _LOCK:
            model = _opened(self._path, ())
        yield from model.embed(texts).tolist() if texts else ()


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the packaged model and those on this machine."""
    for model_id, path in _models():
        register(QuireModel(model_id, path), AsyncQuireModel(model_id, path))


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register these models for embeddings."""
    for model_id, path in _models():
        register(QuireEmbeddingModel(model_id, path))


def _models() -> Iterable[tuple[str, str | None]]:
    found: dict[str, str | None] = {"quire": None}
    for stored in stored_models():
        found.setdefault(f"quire/{stored.name}", str(stored.path))
    return found.items()


class _Answer:
    """Passes an answer to ``llm``: text and reasoning as events, whole calls, and token counts at the end."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._n_tokens = 0

    def add(self, delta: ChatDelta) -> Iterator[StreamEvent]:
        self._n_tokens += len(delta.token_ids)
        if delta.reasoning_content:
            yield StreamEvent(type="reasoning", chunk=delta.reasoning_content)
        if delta.content:
            yield StreamEvent(type="text", chunk=delta.content)
        for call in delta.tool_calls:
            arguments = _object(call.name or "", call.arguments)
            yield StreamEvent(type="tool_call_name", chunk=call.name or "", tool_call_id=call.id)
            yield StreamEvent(type="tool_call_args", chunk=call.arguments, tool_call_id=call.id)
            self._response.add_tool_call(llm.ToolCall(name=call.name or "", arguments=arguments, tool_call_id=call.id))
        if delta.finish_reason is not None:
            details = {"cached_tokens": delta.n_cached_tokens} if delta.n_cached_tokens else None
            self._response.set_usage(input=delta.n_prompt_tokens, output=self._n_tokens, details=details)
            self._response.response_json = {"finish_reason": delta.finish_reason}


def _object(name: str, arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RequestError(f"[{_PLACE}] arguments of {name} are not an object: {arguments!r:.80}")
    return found


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, llm.Tool):
        raise UnsupportedError(f"[{_PLACE}] unsupported tool of type {type(tool).__name__}: only tools that run here")
    about = {"name": tool.name, "description": tool.description or ""}
    return {"type": "function", "function": {**about, "parameters": tool.input_schema}}


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Convert the messages of ``llm`` to those of ``LLM.chat``."""
    shown: list[dict[str, Any]] = []
    for message in messages:
        made: dict[str, Any] = {"role": message.role, "content": ""}
        results: list[dict[str, Any]] = []
        for part in message.parts:
            if isinstance(part, TextPart):
                made["content"] += part.text
            elif isinstance(part, ReasoningPart):
                made["reasoning_content"] = made.get("reasoning_content", "") + part.text
            elif isinstance(part, ToolCallPart):
                function = {"name": part.name, "arguments": json.dumps(part.arguments)}
                call = {"id": part.tool_call_id, "type": "function", "function": function}
                made.setdefault("tool_calls", []).append(call)
            elif isinstance(part, ToolResultPart) and not part.attachments:
                text = part.output or part.exception or ""
                results.append({"role": "tool", "tool_call_id": part.tool_call_id, "name": part.name, "content": text})
            else:
                raise UnsupportedError(f"[{_PLACE}] unsupported part of a message: {type(part).__name__}")
        shown += results or [made]
    return shown
