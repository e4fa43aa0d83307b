"""Calls of tools that wait for a person's word."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..failures import ApiError

if TYPE_CHECKING:
    from .caller import Caller

__all__ = ["Approvals", "WaitingCall"]

_MOST_CALLS = 4096
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class WaitingCall:
    """A call as the person was shown it.  ``call_id``: its id in the conversation."""

    tool: str
    arguments: str
    call_id: str


class Approvals:
    """Waiting calls by caller and id.  Each can be answered once; the oldest are dropped when there are too many."""

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], WaitingCall] = OrderedDict()
        self._n_bytes = 0

    def add(self, caller: Caller, id_: str, call: WaitingCall) -> None:
        """Store a call."""
        self._calls[caller.name, id_] = call
        self._n_bytes += len(call.arguments)
        while len(self._calls) > _MOST_CALLS or self._n_bytes > _MOST_BYTES:
            _, dropped = self._calls.popitem(last=False)
            self._n_bytes -= len(dropped.arguments)

    def take(self, caller: Caller, id_: str, param: str) -> WaitingCall:
        """Remove a call of this caller and return it.

        ApiError 404 if none waits; ``param`` is the field that names it.
        """
        found = self._calls.pop((caller.name, id_), None)
        if found is None:
            text = f"no call waits for approval {id_!r:.80}: it was answered, or has expired"
            raise ApiError(404, "approval_not_found", text, param)
        self._n_bytes -= len(found.arguments)
        return found
