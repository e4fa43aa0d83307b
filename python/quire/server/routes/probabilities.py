"""Probabilities of tokens after the sampling chain, by llama-server's names (``post_sampling_probs``)."""

from __future__ import annotations

from math import exp
from typing import Any

from ..worker.protocol import Logprob

__all__ = ["probability", "shown_token"]

_LEAST = 1e-45  # a probability below it is 0 in 32 bits: llama-server leaves such tokens out


def probability(token: Logprob) -> dict[str, Any]:
    """A drawn token, and the likeliest of those that could have been drawn."""
    top = [{**shown_token(id_, shown), "prob": exp(p)} for id_, shown, p in token.top if exp(p) >= _LEAST]
    return {**shown_token(token.token_id, token.shown), "prob": exp(token.logprob), "top_probs": top}


def shown_token(id_: int, shown: bytes) -> dict[str, Any]:
    """What a token is."""
    return {"id": id_, "token": shown.decode("utf-8", "replace"), "bytes": list(shown)}
