"""Build answers of ``/v1/responses`` in OpenAI's format: items, or events that report their progress."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from ...failures import ApiError, Dialect, error_body
from ...listener import sse
from ...worker.protocol import Delta
from ..answers import Message, ResponseStream, new_id
from ..fields import shown_tier
from ..sampling_fields import sampling_of
from ..timings import progress_of, reading_so_far, timings_of, timings_so_far
from .tool_names import ToolNames

if TYPE_CHECKING:
    from .responses_fields import ResponsesBody

__all__ = ["ResponseShape"]


class ResponseShape:
    """One answer, as an object or as events."""

    def __init__(
        self, body: ResponsesBody, answer: ResponseStream, messages: list[dict[str, Any]], model: str, n_values: int
    ) -> None:
        self._body = body
        self._names = ToolNames(body.tools)
        self._n_values = n_values
        self._answer = answer
        self._messages = messages
        self._id = f"resp_{new_id()}"
        self._model = model
        self._created = int(time.time())
        self._number = 0
        self._n_reasoning = self._n_before_text = 0
        self._n_new, self._first_s = 0, 0.0
        self._items: list[dict[str, Any]] = []
        self.message = Message()

    def _response(self, status: str) -> dict[str, Any]:
        body, given = self._body, sampling_of(self._body)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": self._model,
            "output": self._items,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            "store": body.store,
            "temperature": given.get("temperature"),
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools,
            "top_p": given.get("top_p"),
            **shown_tier(body.service_tier),
            "truncation": body.truncation,
            "usage": None if status == "in_progress" else self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._answer.usage
        return {
            "input_tokens": usage.n_prompt,
            "input_tokens_details": {"cached_tokens": usage.n_cached},
            "output_tokens": usage.n_generated,
            "output_tokens_details": {"reasoning_tokens": self._n_reasoning},
            "total_tokens": usage.n_prompt + usage.n_generated,
        }

    def take(self, delta: Delta) -> None:
        """Add a delta.  Tokens before the first text count as reasoning if any of them is reasoning."""
        self.message.add(delta)
        message = self.message
        if any(message.reasoning) and not any(message.content) and not message.calls:
            self._n_reasoning = self._n_before_text = self._n_before_text + len(delta.token_ids)
        elif not any(message.content):
            self._n_before_text += len(delta.token_ids)

    def complete(self) -> dict[str, Any]:
        """Return the complete response, and store it unless the request forbids it."""
        if not self._items:
            self._items = self._items_of()
        response = self._response("incomplete" if self._answer.ends[0].reason == "length" else "completed")
        if self._body.store:
            context = self._answer.context
            messages = [*self._messages, self._as_message()]
            context.service.responses.add(context.caller, self._id, response, messages, self._n_values)
        return response

    def _as_message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.message.content)}
        if self.message.calls:
            message["tool_calls"] = list(self.message.calls.values())
        return message

    def _items_of(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if thoughts := "".join(self.message.reasoning):
            items.append(_reasoning_item(thoughts))
        if (text := "".join(self.message.content)) or not self.message.calls:
            items.append(_message_item(f"msg_{new_id()}", text))
        return items + [_call_item(made, self._names) for made in self.message.calls.values()]

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.named_event(kind, {"type": kind, "sequence_number": number, **fields})

    def failed(self, error: ApiError) -> bytes:
        """Return the last event of an answer that breaks off."""
        shown = error_body(error, Dialect.OPENAI)["error"]
        return self._event("error", code=shown["code"], message=shown["message"], param=shown["param"])

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the answer as events."""
        response = self._response("in_progress")
        yield self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )
        thoughts, text = _ReasoningItem(self), _TextItem(self)
        async for batch in self._answer.batches():
            pieces = []
            for event in batch:
                if not isinstance(event, Delta):
                    continue
                if event.n_read is not None:
                    pieces.append(self._progress(event.n_read))
                    continue
                self.take(event)
                more = self._timings(event)
                if event.reasoning:
                    pieces += thoughts.more(event.reasoning, more)
                if event.content:
                    pieces += [*thoughts.end(), *text.more(event.content, more)]
            yield b"".join(pieces)
        pieces = [*thoughts.end(), *text.end()]
        if not text.began and not self.message.calls:
            pieces += [*text.more("", {}), *text.end()]
        for made in self.message.calls.values():
            pieces += self._call_events(made)
        yield b"".join(pieces)
        response = self.complete()
        timings = timings_of(self._answer.ends[0])
        yield self._event(f"response.{response['status']}", response=response, timings=timings)

    def _progress(self, n_read: int) -> bytes:
        """Report how much of the prompt has been processed, in llama.cpp's format."""
        stream = self._answer.stream
        more: dict[str, Any] = {"prompt_progress": progress_of(stream, self._answer.usage.n_prompt, n_read)}
        if self._body.timings_per_token:
            more["timings"] = reading_so_far(stream, n_read)
        return self._event("response.in_progress", response=self._response("in_progress"), **more)

    def _timings(self, delta: Delta) -> dict[str, Any]:
        """Return the times of the answer so far, if the request wants them in every event."""
        self._n_new += len(delta.token_ids)
        self._first_s = self._first_s or time.monotonic()
        if not self._body.timings_per_token:
            return {}
        answer = self._answer
        return {"timings": timings_so_far(answer.stream, answer.usage.n_prompt, self._n_new, self._first_s)}

    def _call_events(self, made: dict[str, Any]) -> list[bytes]:
        item = _call_item(made, self._names)
        at = {"item_id": item["id"], "output_index": len(self._items)}
        self._items.append(item)
        begun = {**item, "arguments": "", "status": "in_progress"}
        arguments = "response.function_call_arguments"
        return [
            self._event("response.output_item.added", output_index=at["output_index"], item=begun),
            self._event(f"{arguments}.delta", **at, delta=item["arguments"]),
            self._event(f"{arguments}.done", **at, name=item["name"], arguments=item["arguments"]),
            self._event("response.output_item.done", output_index=at["output_index"], item=item),
        ]


class _ReasoningItem:
    """The events of the reasoning item."""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape
        self._item = _reasoning_item("")
        self._text: list[str] = []
        self._index: int | None = None

    def more(self, text: str, further: dict[str, Any]) -> list[bytes]:
        """Add reasoning, with ``further`` fields.

        The first call starts the item; once it has ended, nothing is added.
        """
        shape, pieces = self._shape, []
        if self._index is None:
            if self._text:
                return []
            self._index = len(shape._items)
            begun = {**self._item, "content": [], "status": "in_progress"}
            pieces.append(shape._event("response.output_item.added", output_index=self._index, item=begun))
        self._text.append(text)
        at = {"item_id": self._item["id"], "output_index": self._index, "content_index": 0}
        pieces.append(shape._event("response.reasoning_text.delta", **at, delta=text, **further))
        return pieces

    def end(self) -> list[bytes]:
        """End the item if it is open."""
        if self._index is None:
            return []
        shape, index, text = self._shape, self._index, "".join(self._text)
        self._index = None
        self._item["content"] = [{"type": "reasoning_text", "text": text}]
        shape._items.append(self._item)
        at = {"item_id": self._item["id"], "output_index": index, "content_index": 0}
        return [
            shape._event("response.reasoning_text.done", **at, text=text),
            shape._event("response.output_item.done", output_index=index, item=self._item),
        ]


class _TextItem:
    """The events of the text item."""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape
        self._id = f"msg_{new_id()}"
        self._text: list[str] = []
        self._index = 0
        self.began = False

    def more(self, text: str, further: dict[str, Any]) -> list[bytes]:
        """Add text, with ``further`` fields; the first call starts the item."""
        shape, pieces = self._shape, []
        if not self.began:
            self.began = True
            self._index = len(shape._items)
            begun = {**_message_item(self._id, ""), "content": [], "status": "in_progress"}
            pieces.append(shape._event("response.output_item.added", output_index=self._index, item=begun))
            pieces.append(shape._event("response.content_part.added", **self._at(), part=_part("")))
        self._text.append(text)
        if text:
            pieces.append(shape._event("response.output_text.delta", **self._at(), delta=text, logprobs=[], **further))
        return pieces

    def end(self) -> list[bytes]:
        """End the item if it was started."""
        if not self.began:
            return []
        shape, text = self._shape, "".join(self._text)
        item = _message_item(self._id, text)
        shape._items.append(item)
        return [
            shape._event("response.output_text.done", **self._at(), text=text, logprobs=[]),
            shape._event("response.content_part.done", **self._at(), part=_part(text)),
            shape._event("response.output_item.done", output_index=self._index, item=item),
        ]

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_item(id_: str, text: str) -> dict[str, Any]:
    return {"id": id_, "type": "message", "role": "assistant", "status": "completed", "content": [_part(text)]}


def _reasoning_item(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{new_id()}", "type": "reasoning", "summary": [], "content": content}


def _is_whole(arguments: str) -> bool:
    """Return True if arguments were not cut off by ``max_output_tokens``."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True


def _call_item(made: dict[str, Any], names: ToolNames) -> dict[str, Any]:
    return {
        "id": f"fc_{new_id()}",
        "type": "function_call",
        "status": "completed" if _is_whole(made["function"]["arguments"]) else "incomplete",
        "call_id": made["id"],
        **names.fields(made["function"]["name"]),
        "arguments": made["function"]["arguments"],
    }
