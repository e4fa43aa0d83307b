"""The output of ``/v1/responses`` as it grows: its items, and the events about them, in OpenAI's format."""

from __future__ import annotations

from typing import Any

from ...listener import sse
from ..answers import new_id
from .output_items import message_item, reasoning_item, text_part

__all__ = ["Output", "ReasoningItem", "TextItem"]


class Output:
    """The items of a response, and numbered events."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return the next event."""
        number, self._number = self._number, self._number + 1
        return sse.named_event(kind, {"type": kind, "sequence_number": number, **fields})

    def item_events(self, item: dict[str, Any]) -> list[bytes]:
        """Return all events of an item that is complete."""
        index = len(self.items)
        self.items.append(item)
        return [*self.begun(item, index), *self.ended(item, index)]

    def begun(self, item: dict[str, Any], index: int) -> list[bytes]:
        """Return the events of an item up to its arguments."""
        kind, at = item["type"], {"item_id": item["id"], "output_index": index}
        shown = {**item, "arguments": ""} if kind == "function_call" else item
        if kind in ("function_call", "mcp_call"):
            shown = {**shown, "status": "in_progress", "arguments": ""}
        if kind == "mcp_call":
            shown |= {"output": None, "error": None}
        events = [self.event("response.output_item.added", output_index=index, item=shown)]
        if kind in ("mcp_call", "mcp_list_tools"):
            events.append(self.event(f"response.{kind}.in_progress", **at))
        if kind in ("function_call", "mcp_call"):
            name = {"name": item["name"]} if kind == "function_call" else {}
            events += [
                self.event(f"response.{kind}_arguments.delta", **at, delta=item["arguments"]),
                self.event(f"response.{kind}_arguments.done", **at, **name, arguments=item["arguments"]),
            ]
        return events

    def ended(self, item: dict[str, Any], index: int) -> list[bytes]:
        """Return the events of an item's end."""
        events = []
        if item["type"] in ("mcp_call", "mcp_list_tools"):
            outcome = "failed" if item["error"] is not None else "completed"
            events.append(self.event(f"response.{item['type']}.{outcome}", item_id=item["id"], output_index=index))
        return [*events, self.event("response.output_item.done", output_index=index, item=item)]


class ReasoningItem:
    """The events of the reasoning item."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._item = reasoning_item("")
        self._text: list[str] = []
        self._index: int | None = None

    def more(self, text: str, further: dict[str, Any]) -> list[bytes]:
        """Add reasoning, with ``further`` fields.

        The first call starts the item; once it has ended, nothing is added.
        """
        out, pieces = self._out, []
        if self._index is None:
            if self._text:
                return []
            self._index = len(out.items)
            begun = {**self._item, "content": [], "status": "in_progress"}
            pieces.append(out.event("response.output_item.added", output_index=self._index, item=begun))
        self._text.append(text)
        at = {"item_id": self._item["id"], "output_index": self._index, "content_index": 0}
        pieces.append(out.event("response.reasoning_text.delta", **at, delta=text, **further))
        return pieces

    def end(self) -> list[bytes]:
        """End the item if it is open."""
        if self._index is None:
            return []
        out, index, text = self._out, self._index, "".join(self._text)
        self._index = None
        self._item["content"] = [{"type": "reasoning_text", "text": text}]
        out.items.append(self._item)
        at = {"item_id": self._item["id"], "output_index": index, "content_index": 0}
        return [
            out.event("response.reasoning_text.done", **at, text=text),
            out.event("response.output_item.done", output_index=index, item=self._item),
        ]


class TextItem:
    """The events of the text item."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._id = f"msg_{new_id()}"
        self._text: list[str] = []
        self._index = 0
        self.began = False

    def more(self, text: str, further: dict[str, Any]) -> list[bytes]:
        """Add text, with ``further`` fields; the first call starts the item."""
        out, pieces = self._out, []
        if not self.began:
            self.began = True
            self._index = len(out.items)
            begun = {**message_item(self._id, ""), "content": [], "status": "in_progress"}
            pieces.append(out.event("response.output_item.added", output_index=self._index, item=begun))
            pieces.append(out.event("response.content_part.added", **self._at(), part=text_part("")))
        self._text.append(text)
        if text:
            pieces.append(out.event("response.output_text.delta", **self._at(), delta=text, logprobs=[], **further))
        return pieces

    def end(self) -> list[bytes]:
        """End the item if it was started."""
        if not self.began:
            return []
        out, text = self._out, "".join(self._text)
        item = message_item(self._id, text)
        out.items.append(item)
        return [
            out.event("response.output_text.done", **self._at(), text=text, logprobs=[]),
            out.event("response.content_part.done", **self._at(), part=text_part(text)),
            out.event("response.output_item.done", output_index=self._index, item=item),
        ]

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}
