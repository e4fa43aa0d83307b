"""What the process of a model takes beside the model, and how much of a budget is left to the model itself."""

from __future__ import annotations

from typing import Any

from ...errors import CapacityError
from ...system import process_memory

__all__ = ["LEAST_BYTES", "check_share", "committed_bytes", "with_share_of_model"]

MIB = 1 << 20
# What comes after the model is open: the libraries of templates and grammars, the process in which grammars are tried,
# and requests.  For each token of the vocabulary, the tree that masks are made from.
_LATER_BYTES, _LATER_TOKEN_BYTES = 48 * MIB, 500
_TOLERANCE = 1.05
# A process beside its model's file, as far as it is known before: itself, what comes later, a small cache.
LEAST_BYTES = 88 * MIB


def with_share_of_model(config: dict[str, Any]) -> dict[str, Any]:
    """The options of an engine whose ``memory_bytes`` are the whole process's: less what the process takes without it.

    CapacityError where that is everything.
    """
    share = config.get("memory_bytes")
    if share is None:
        return config
    from ...engine.loading.memory import available_bytes

    rest = min(share, available_bytes() or share) - process_memory()[0] - _LATER_BYTES
    if rest <= 0:
        raise CapacityError(
            f"[memory] the process of a model must fit into {share / MIB:.0f} MiB but takes more by itself"
        )
    return {**config, "memory_bytes": rest}


def committed_bytes(n_vocab: int, reserved_bytes: int) -> int:
    """What this process, whose model is open, may come to take: what it has, and what is still to be filled."""
    return process_memory()[0] + reserved_bytes + _LATER_BYTES + _LATER_TOKEN_BYTES * n_vocab


def check_share(committed: int, share: int | None) -> None:
    """CapacityError where a process may come to take more than its share, as measured with the model open."""
    if share is not None and committed > share * _TOLERANCE:
        text = f"[memory] the process of a model must stay within {share / MIB:.0f} MiB"
        raise CapacityError(f"{text} but may come to take {committed / MIB:.0f} MiB")
