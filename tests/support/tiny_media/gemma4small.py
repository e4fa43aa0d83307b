"""Gemma 4 as in its small sizes: embeddings for every layer, shared K and V, clipped products, causal images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import gemma4


def make() -> Any:
    return gemma4.make(
        {"use_bidirectional_attention": None, "hidden_size_per_layer_input": 12, "num_kv_shared_layers": 1},
        {"standardize": False, "use_clipped_linears": True},
    )  # fmt: skip


FAMILY = replace(gemma4.FAMILY, make=make)
