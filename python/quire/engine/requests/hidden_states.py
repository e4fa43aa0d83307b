"""Requests for the hidden states of texts that a model has written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import RequestError

if TYPE_CHECKING:
    from ..engine import EngineRequest

__all__ = ["check_readable", "tap_request"]


def check_readable(request: EngineRequest) -> None:
    """Raise RequestError if a request chooses what a later pass over its text does not read."""
    params = request.params
    for name in ("adapter", "control_vectors"):
        if params is not None and getattr(params, name) is not None:
            raise RequestError(f"[hidden_states] hidden_states cannot be combined with {name}")


def tap_request(request: EngineRequest, token_ids: Sequence[int]) -> EngineRequest:
    """Return a request for the hidden states of a request's prompt and of an answer to it."""
    return replace(
        request,
        token_ids=[*request.token_ids, *token_ids],
        params=None,
        grammar=None,
        form=None,
        embedding="taps",
        prediction=(),
        bad_sequences=(),
        shadow=None,
    )
