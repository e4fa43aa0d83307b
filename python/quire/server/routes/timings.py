"""Times of an answer in llama.cpp's format."""

from __future__ import annotations

import time
from typing import Any

from ..worker.engine_client import Stream
from ..worker.protocol import Finished

__all__ = ["progress_of", "reading_so_far", "timings_of", "timings_so_far"]


def reading_so_far(stream: Stream, n_read: int) -> dict[str, Any]:
    """Return the timings while a prompt is processed; ``n_read`` counts its tokens so far, including cached ones."""
    return {
        "cache_n": stream.n_cached,
        **_rate("prompt", n_read - stream.n_cached, time.monotonic() - stream.admitted_s),
        **_rate("predicted", 0, 0.0),
    }


def progress_of(stream: Stream, n_prompt: int, n_read: int) -> dict[str, Any]:
    """Return how much of a prompt has been processed."""
    return {
        "total": n_prompt,
        "cache": stream.n_cached,
        "processed": n_read,
        "time_ms": round((time.monotonic() - stream.admitted_s) * 1e3),
    }


def timings_so_far(stream: Stream, n_prompt: int, n_new: int, first_s: float) -> dict[str, Any]:
    """Return the timings as the listener sees them; the last event has those of the model's process."""
    return {
        "cache_n": stream.n_cached,
        **_rate("prompt", n_prompt - stream.n_cached, first_s - stream.admitted_s),
        **_rate("predicted", n_new, time.monotonic() - first_s, n_new - 1),
    }


def timings_of(end: Finished, n_new: int | None = None) -> dict[str, Any]:
    """Return the times of a choice in milliseconds, with rates.

    All are 0 where nothing was done, and for a single new token, which takes no time beyond its prompt's.
    """
    n_read = end.n_prompt_tokens - end.n_cached_tokens
    n_new = end.n_generated_tokens if n_new is None else n_new
    return {
        "cache_n": end.n_cached_tokens,
        **_rate("prompt", n_read, end.prefill_s),
        **_rate("predicted", n_new, end.decode_s if n_new > 1 else 0.0, n_new - 1),
        **(
            {"draft_n": end.n_drafted_tokens, "draft_n_accepted": end.n_accepted_tokens} if end.n_drafted_tokens else {}
        ),
    }


def _rate(name: str, n: int, seconds: float, n_timed: int | None = None) -> dict[str, Any]:
    """Return the figures of ``n`` tokens, ``n_timed`` of which took the time: the first comes with the prompt's end."""
    n_timed = n if n_timed is None else n_timed
    return {
        f"{name}_n": n,
        f"{name}_ms": round(seconds * 1e3, 3),
        f"{name}_per_token_ms": round(seconds * 1e3 / n_timed, 6) if n_timed > 0 else 0.0,
        f"{name}_per_second": round(n_timed / seconds, 6) if seconds > 0 else 0.0,
    }
