"""The state of one HTTP request, which the parts of the server fill in as it passes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..failures import Dialect
from ..service.caller import Caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

    from ..service.admission import Ticket

__all__ = ["RequestState", "request_state_of"]

_KEY = "quire.request_state"


@dataclass
class RequestState:
    """One HTTP request and its reply.

    ``caller``: None until its key was checked.  ``ticket``: of a request with a body, once it was let in.
    ``ignored``: names of fields without effect, which the reply tells.
    ``headers``: of the reply, whatever it is.  ``status`` and ``code``: of the reply, for the log.  ``usage``: tokens
    and times, for the log.  ``route`` and ``model``: what answers, where a route does.  ``abort``: ends the connection
    at once, where there is one.  ``ping_s``: silence after which a stream carries a ping, where the request says (0 or
    less: none does).
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


def request_state_of(scope: Scope) -> RequestState:
    """Return the state of the request with this ASGI scope, where it is kept; create it on the first call."""
    found = scope.get(_KEY)
    if found is None:
        found = scope[_KEY] = RequestState()
    assert isinstance(found, RequestState)
    return found
