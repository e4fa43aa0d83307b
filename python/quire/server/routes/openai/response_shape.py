"""Build answers of ``/v1/responses`` in OpenAI's format: items, or events that report their progress."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...failures import ApiError, Dialect, error_body
from ...service.conversation_store import ConversationStore
from ...worker.protocol import Delta
from ..answers import Message, ResponseStream, Usage, new_id
from ..fields import shown_tier
from ..sampling_fields import sampling_of
from ..timings import progress_of, reading_so_far, timings_of, timings_so_far
from .conversations import new_items, stored
from .mcp_turn import Planned
from .output_events import Output, ReasoningItem, TextItem
from .output_items import call_item, message_item, reasoning_item
from .tool_names import ToolNames

if TYPE_CHECKING:
    from ...worker.engine_client import EngineClient
    from ...worker.protocol import Chat
    from .mcp_turn import McpTurn
    from .responses_fields import ResponsesBody

__all__ = ["Asked", "ResponseShape", "response_object"]


@dataclass(frozen=True)
class Asked:
    """A request: the engine's work, the messages without instructions, the number of their values, and the input.

    ``turn``: the server runs tools for it.
    """

    engine: EngineClient
    work: Chat
    messages: list[dict[str, Any]]
    n_values: int
    given: str | list[dict[str, Any]]
    turn: McpTurn | None = None


def response_object(body: ResponsesBody, model: str, status: str) -> dict[str, Any]:
    """Return a response without output."""
    given = sampling_of(body)
    return {
        "id": f"resp_{new_id()}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "background": body.background,
        "conversation": None if body.conversation is None else {"id": body.conversation_id},
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata,
        "model": model,
        "output": [],
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
        "usage": None,
    }


class ResponseShape:
    """One response, as an object or as events: an answer, or several with calls of tools that the server runs."""

    def __init__(self, body: ResponsesBody, answer: ResponseStream, asked: Asked, model: str) -> None:
        self._body = body
        self._names = ToolNames(body.tools)
        self._asked = asked
        self._turn = asked.turn
        self._answer = answer
        self._added: list[dict[str, Any]] = []
        self._earlier = Usage()
        self._id = f"resp_{new_id()}"
        self._model = model
        self._created = int(time.time())
        self._n_reasoning = self._n_before_text = 0
        self._n_new, self._first_s = 0, 0.0
        self._n_reasoning_earlier = 0
        self._out = Output()
        self._status = "completed"
        self.message = Message()

    def _response(self, status: str) -> dict[str, Any]:
        return response_object(self._body, self._model, status) | {
            "id": self._id,
            "created_at": self._created,
            "output": self._out.items,
            "usage": None if status == "in_progress" else self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        usage = replace(self._answer.usage)
        usage.add(self._earlier)
        return {
            "input_tokens": usage.n_prompt,
            "input_tokens_details": {"cached_tokens": usage.n_cached},
            "output_tokens": usage.n_generated,
            "output_tokens_details": {"reasoning_tokens": self._n_reasoning_earlier + self._n_reasoning},
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

    async def whole(self) -> dict[str, Any]:
        """Read the answer to its end, run the tools that it calls, and return the complete response."""
        if self._turn is not None:
            self._out.items += self._turn.items
        while True:
            async for delta in self._answer.deltas():
                self.take(delta)
            planned = self._planned()
            if thoughts := "".join(self.message.reasoning):
                self._out.items.append(reasoning_item(thoughts))
            if (text := "".join(self.message.content)) or not planned:
                self._out.items.append(message_item(f"msg_{new_id()}", text))
            results = await self._run(planned)
            self._out.items += [each.item for each in planned]
            if not await self._goes_on(planned, results):
                return await self._complete()

    def _planned(self) -> list[Planned]:
        """Decide what happens to the calls of the answer."""
        calls = list(self.message.calls.values())
        if self._turn is None:
            return [Planned(made, call_item(made, self._names)) for made in calls]
        return self._turn.planned(calls, self._names, is_whole=self._answer.ends[0].reason != "length")

    async def _run(self, planned: list[Planned]) -> list[dict[str, Any]]:
        return [] if self._turn is None or not planned else await self._turn.run(planned)

    async def _goes_on(self, planned: list[Planned], results: list[dict[str, Any]]) -> bool:
        """End a round; return whether another one has begun.

        It has if the server ran all calls, and tokens are left.
        """
        self._added += [self._as_message(), *results]
        if self._answer.ends[0].reason == "length":
            self._status = "incomplete"
        if self._turn is None or not planned or any(each.tool is None for each in planned):
            return False
        spent = replace(self._answer.usage)
        spent.add(self._earlier)
        most = self._body.max_output_tokens
        n_left = None if most is None else most - spent.n_generated
        if n_left is not None and n_left < 1:
            self._status = "incomplete"
            return False
        asked = structs.replace(self._asked.work, messages=[*self._asked.work.messages, *self._added])
        answer = await self._turn.answer(self._asked.engine, asked, n_left)
        self._earlier, self._answer = spent, answer
        self._n_reasoning_earlier += self._n_reasoning
        self._n_reasoning = self._n_before_text = self._n_new = 0
        self._first_s = 0.0
        self.message = Message()
        return True

    async def _complete(self) -> dict[str, Any]:
        """Return the complete response, and store it unless the request forbids it.

        Its conversation gets the input and the output, unless it was deleted meanwhile.
        """
        context, response = self._answer.context, self._response(self._status)
        if self._body.store:
            messages = [*self._asked.messages, *self._added]
            context.service.responses.add(context.caller, self._id, response, messages, self._asked.n_values)
        if (id_ := self._body.conversation_id) is not None:
            added = [*new_items(self._asked.given), *response["output"]]
            try:
                await stored(context, ConversationStore.add, id_, added)
            except ApiError as error:
                if error.code != "conversation_not_found":
                    raise
        return response

    def _as_message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.message.content)}
        if self.message.calls:
            message["tool_calls"] = list(self.message.calls.values())
        return message

    def failed(self, error: ApiError) -> bytes:
        """Return the last event of an answer that breaks off."""
        shown = error_body(error, Dialect.OPENAI)["error"]
        return self._out.event("error", code=shown["code"], message=shown["message"], param=shown["param"])

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the answer as events."""
        response = self._response("in_progress")
        yield self._out.event("response.created", response=response) + self._out.event(
            "response.in_progress", response=response
        )
        if self._turn is not None and self._turn.items:
            events = [event for item in self._turn.items for event in self._out.item_events(item)]
            yield b"".join(events)
        while True:
            async for piece in self._answer_pieces():
                yield piece
            planned = self._planned()
            out, index = self._out, len(self._out.items)
            yield b"".join(event for i, each in enumerate(planned) for event in out.begun(each.item, index + i))
            results = await self._run(planned)
            out.items += [each.item for each in planned]
            yield b"".join(event for i, each in enumerate(planned) for event in out.ended(each.item, index + i))
            if not await self._goes_on(planned, results):
                break
        timings = timings_of(self._answer.ends[0])
        response = await self._complete()
        yield self._out.event(f"response.{response['status']}", response=response, timings=timings)

    async def _answer_pieces(self) -> AsyncIterator[bytes]:
        """Yield the events of the reasoning and the text of one answer."""
        thoughts, text = ReasoningItem(self._out), TextItem(self._out)
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
        yield b"".join(pieces)

    def _progress(self, n_read: int) -> bytes:
        """Report how much of the prompt has been processed, in llama.cpp's format."""
        stream = self._answer.stream
        more: dict[str, Any] = {"prompt_progress": progress_of(stream, self._answer.usage.n_prompt, n_read)}
        if self._body.timings_per_token:
            more["timings"] = reading_so_far(stream, n_read)
        return self._out.event("response.in_progress", response=self._response("in_progress"), **more)

    def _timings(self, delta: Delta) -> dict[str, Any]:
        """Return the times of the answer so far, if the request wants them in every event."""
        self._n_new += len(delta.token_ids)
        self._first_s = self._first_s or time.monotonic()
        if not self._body.timings_per_token:
            return {}
        answer = self._answer
        return {"timings": timings_so_far(answer.stream, answer.usage.n_prompt, self._n_new, self._first_s)}
