"""Failures of requests, as the engine delivers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import (
    CapacityError,
    DeviceError,
    InternalError,
    LoadError,
    QuireError,
    RequestError,
    ShapeError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from .._native.engine import Event

__all__ = ["Failure", "item_of"]

_KINDS: dict[str, type[QuireError]] = {
    kind.__name__: kind
    for kind in (LoadError, ShapeError, UnsupportedError, CapacityError, RequestError, InternalError, DeviceError)
}


@dataclass(frozen=True)
class Failure:
    """The last item delivered for a request that failed."""

    request_id: int
    error: QuireError


def item_of(event: Event, interruption: str) -> Event | Failure:
    """Return an event, or the failure that it stands for.

    ``interruption`` says why requests are cancelled; empty if their callers cancel them.
    """
    if interruption and event.finish_reason == "cancelled":
        return Failure(event.request_id, RequestError(interruption))
    if event.kind != "error":
        return event
    assert event.error_kind is not None
    return Failure(event.request_id, _KINDS[event.error_kind](event.error))
