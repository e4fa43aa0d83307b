"""Which stage of a pipeline has which weights: each has layers that follow each other."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import UnsupportedError

__all__ = ["stages_of"]


def stages_of(names: Iterable[str], n_layer: int, n_stages: int) -> dict[str, int]:
    """Return the stage of each weight that places operations; others follow the operations around them.

    Raises:
        UnsupportedError: There are fewer layers than stages.
    """
    if n_layer < n_stages:
        raise UnsupportedError(f"[parallel] pipeline_parallel_size {n_stages} exceeds the model's {n_layer} layers")
    found = {}
    for name in names:
        if name.startswith("blk."):
            layer = min(int(name.split(".")[1]), n_layer - 1)
            found[name] = layer * n_stages // n_layer
        elif not name.startswith("rope_"):
            found[name] = n_stages - 1 if name.startswith("output") else 0
    return found
