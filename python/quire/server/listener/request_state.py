"""The state of one HTTP request, filled in by the parts of the server that it passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..failures import Dialect
from ..service.caller import Caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

    from ..service.admission import Ticket

__all__ = ["RequestState", "request_state_of", "set_request_state"]

_KEY = "quire.request_state"


@dataclass
class RequestState:
    """One HTTP request and its reply.

    Attributes:
        caller: None until the key has been checked.
        ticket: The share of the limits that an admitted request with a body holds.
        ignored: Names of fields without effect, for a header of the reply.
        headers: Headers of the reply, also if it is an error.
        status, code: Of the reply, for the log.
        usage: Tokens and times, for the log.
        route, model: What answered, if a route did.
        abort: Closes the connection at once.
        is_background: Run it after the requests of clients.
        in_batch: It is a line of a batch.
        ping_s: Silence after which the stream sends a ping, if the request sets it; 0 or less: never.
    """

    request_id: str = ""
    dialect: Dialect = Dialect.OPENAI
    caller: Caller | None = None
    ticket: Ticket | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    status: int = 500
    code: str | None = None
    usage: dict[str, float] = field(default_factory=dict)
    route: str | None = None
    model: str | None = None
    abort: Callable[[], None] | None = None
    ping_s: float | None = None
    is_background: bool = False
    in_batch: bool = False


def set_request_state(scope: Scope, caller: Caller, *, in_batch: bool) -> None:
    """Make a scope that of a request of the server itself, for a caller whose key was checked before."""
    scope[_KEY] = RequestState(caller=caller, is_background=True, in_batch=in_batch)


def request_state_of(scope: Scope) -> RequestState:
    """Return the state of the request with this ASGI scope, where it is kept; create it on the first call."""
    found = scope.get(_KEY)
    if found is None:
        found = scope[_KEY] = RequestState()
    assert isinstance(found, RequestState)
    return found
