"""The layers with sliding windows, from config.json."""

from __future__ import annotations

from collections.abc import Sequence

from ..reading.fields import Fields
from .decoder import local_layers


def window_pattern(config: Fields, period: int) -> Sequence[bool] | None:
    """Return which layers have a window, or None for all but every ``period``-th, which is not written."""
    local = local_layers(config, period)
    usual = [bool((i + 1) % period) for i in range(len(local))]
    return None if local == usual else local
