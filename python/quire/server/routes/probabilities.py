"""Token probabilities after the sampling chain, in llama-server's format (``post_sampling_probs``)."""

from __future__ import annotations

from math import exp
from typing import Any

from ..worker.protocol import Logprob

__all__ = ["probability", "shown_token"]

_LEAST = 1e-45  # below it a float32 probability is 0, and llama-server omits the token


def probability(token: Logprob) -> dict[str, Any]:
    """Return a drawn token and its most likely alternatives."""
    top = [{**shown_token(id_, shown), "prob": exp(p)} for id_, shown, p in token.top if exp(p) >= _LEAST]
    return {**shown_token(token.token_id, token.shown), "prob": exp(token.logprob), "top_probs": top}


def shown_token(id_: int, shown: bytes) -> dict[str, Any]:
    """Return a token's id, text and bytes."""
    return {"id": id_, "token": shown.decode("utf-8", "replace"), "bytes": list(shown)}
