"""Stored responses that later requests continue, kept in memory up to a limit."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ..failures import ApiError

if TYPE_CHECKING:
    from .caller import Caller

__all__ = ["ResponseStore", "StoredResponse"]

_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class StoredResponse:
    """A response and the conversation up to it.  ``n_values`` counts the values of all request bodies in it."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    n_bytes: int
    n_values: int = 0


class ResponseStore:
    """Responses by caller and id.  The least recently used are dropped when there are too many bytes."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._n_bytes = 0
        self._responses: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()

    def add(
        self, caller: Caller, id_: str, response: dict[str, Any], messages: list[dict[str, Any]], n_values: int = 0
    ) -> None:
        """Store a response, unless it is larger than the limit."""
        n_bytes = len(msgspec.json.encode((response, messages)))
        if n_bytes > self._most_bytes:
            return
        self._responses[caller.name, id_] = StoredResponse(response, messages, n_bytes, n_values)
        self._n_bytes += n_bytes
        while self._n_bytes > self._most_bytes:
            _, dropped = self._responses.popitem(last=False)
            self._n_bytes -= dropped.n_bytes

    def get(self, caller: Caller, id_: str, param: str | None = None) -> StoredResponse:
        """Return a response of this caller.  ApiError 404 if there is none; ``param`` is the field that names it."""
        found = self._responses.get((caller.name, id_))
        if found is None:
            raise ApiError(404, "response_not_found", f"no stored response {id_!r:.80}", param)
        self._responses.move_to_end((caller.name, id_))
        return found

    def replace(self, caller: Caller, id_: str, response: dict[str, Any]) -> None:
        """Change a response, unless it was deleted."""
        kept = self._responses.get((caller.name, id_))
        if kept is not None:
            self.remove(caller, id_)
            self.add(caller, id_, response, kept.messages, kept.n_values)

    def rename(self, caller: Caller, id_: str, new_id: str, response: dict[str, Any]) -> None:
        """Make a response that of another id, which is dropped instead if it was deleted."""
        kept = self.get(caller, id_)
        self.remove(caller, id_)
        if (caller.name, new_id) in self._responses:
            self.remove(caller, new_id)
            self.add(caller, new_id, response, kept.messages, kept.n_values)

    def items(self, caller: Caller) -> dict[str, dict[str, Any]]:
        """Return the items of all of the caller's responses by id."""
        answers = [kept.response for (name, _), kept in self._responses.items() if name == caller.name]
        return {item["id"]: item for answer in answers for item in answer["output"]}

    def remove(self, caller: Caller, id_: str) -> None:
        """Delete a response.  ApiError 404 if there is none."""
        self._n_bytes -= self.get(caller, id_).n_bytes
        del self._responses[caller.name, id_]
