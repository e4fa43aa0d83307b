"""Which layers see only the last tokens, from config.json."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UnsupportedError
from .fields import Fields


def window_pattern(config: Fields, period: int) -> Sequence[bool] | None:
    """Whether each layer has a window; None where it is all but every ``period``-th, which files need not say."""
    n_layer = config.integer("num_hidden_layers")
    usual = [bool((i + 1) % period) for i in range(n_layer)]
    kinds = config.items("layer_types")
    if kinds and (len(kinds) != n_layer or not set(map(str, kinds)) <= {"sliding_attention", "full_attention"}):
        raise UnsupportedError("[convert] 'layer_types' must be sliding_attention or full_attention for each layer")
    local = [kind == "sliding_attention" for kind in kinds] or usual
    return None if local == usual else local
