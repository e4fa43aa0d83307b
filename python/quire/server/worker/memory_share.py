"""Compute how much memory a worker process uses besides its model, and how much of a budget is left for the model."""

from __future__ import annotations

from typing import Any

from ...errors import CapacityError
from ...system import process_memory

__all__ = ["LEAST_BYTES", "check_share", "committed_bytes", "with_share_of_model"]

MIB = 1 << 20
# Memory used after the model is loaded: the libraries for templates and grammars, the process that tries grammars, and
# requests.  Per token of the vocabulary: the tree from which masks are computed.
_LATER_BYTES, _LATER_TOKEN_BYTES = 48 * MIB, 500
_TOLERANCE = 1.05
# Estimate for a process besides its model file: the process itself, later memory, and a small cache.
LEAST_BYTES = 88 * MIB


def with_share_of_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the engine options with ``memory_bytes`` reduced by what the process needs besides the model.

    CapacityError if nothing is left.
    """
    share = config.get("memory_bytes")
    if share is None:
        return config
    from ...engine.loading.memory import available_bytes

    rest = min(share, available_bytes() or share) - process_memory()[0] - _LATER_BYTES
    if rest <= 0:
        raise CapacityError(
            f"[memory] a limit of {share / MIB:.0f} MiB is too small for a worker process, even without a model"
        )
    return {**config, "memory_bytes": rest}


def committed_bytes(n_vocab: int, reserved_bytes: int) -> int:
    """Return the bytes that this process may come to use with its model loaded: in use now, and still to be filled."""
    return process_memory()[0] + reserved_bytes + _LATER_BYTES + _LATER_TOKEN_BYTES * n_vocab


def check_share(committed: int, share: int | None) -> None:
    """Raise CapacityError if a process may exceed its share, as measured with the model loaded."""
    if share is not None and committed > share * _TOLERANCE:
        text = f"[memory] the worker may come to use {committed / MIB:.0f} MiB"
        raise CapacityError(f"{text}, more than its share of {share / MIB:.0f} MiB")
