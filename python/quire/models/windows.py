"""Which layers see only the last tokens, from a file's keys."""

from __future__ import annotations

from ..nn import Keys


def local_layers(m: Keys, n_layer: int, period: int) -> list[bool]:
    """Those with a window: all but every ``period``-th, or as ``attention.sliding_window_pattern`` says, which may
    hold another period (0: all have one) or an array."""
    name = "attention.sliding_window_pattern"
    if m.is_array(name):
        return [bool(local) for local in m.integers(name, n_layer, high=1)]
    period = m.integer(name, period)
    return [period == 0 or (i + 1) % period != 0 for i in range(n_layer)]
