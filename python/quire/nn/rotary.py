"""Rotary position embedding from a file's keys."""

from __future__ import annotations

import math
from typing import Literal

from .._native.graph import RopeSpec
from ..errors import LoadError, UnsupportedError
from ..gguf import Metadata
from .weights import Weights

KINDS = ("none", "linear", "yarn")


def rope_spec(
    m: Metadata,
    arch: str,
    w: Weights,
    *,
    n_dims: int,
    layout: Literal["half", "interleaved"],
    freq_base: float | None = None,
) -> RopeSpec:
    """The rotation that ``{arch}.rope.*`` describes: no scaling, linear, YaRN, or frequencies with factors (llama 3).

    ``freq_base`` overrides the file's, and then scaling does not apply (gemma 3's local layers).  Raises LoadError for
    keys that cannot be, UnsupportedError for a scaling that Quire does not know.
    """
    if freq_base is not None:
        return RopeSpec(n_dims=n_dims, layout=layout, freq_base=freq_base)
    base = m.number(f"{arch}.rope.freq_base", 10000.0)
    kind = m.text(f"{arch}.rope.scaling.type", "none")
    if kind not in KINDS:
        raise UnsupportedError(f"[rope] '{arch}.rope.scaling.type' must be one of {', '.join(KINDS)} but is '{kind}'")
    factor = m.number(f"{arch}.rope.scaling.factor", 1.0) if kind != "none" else 1.0
    if base <= 0 or factor < 1e-6:
        raise LoadError(f"[rope] base and scaling factor must be above 0 but are {base} and {factor}")
    factors = w.tensor("rope_freqs.weight", (n_dims // 2,), vector=True) if w.has("rope_freqs.weight") else None
    if kind != "yarn":
        return RopeSpec(n_dims=n_dims, layout=layout, freq_base=base, freq_scale=1.0 / factor, factors=factors)
    # ggml multiplies attn_factor with 1 + 0.1 ln(factor), YaRN's own; the key holds what comes on top of it.
    attention = m.number(f"{arch}.rope.scaling.attn_factor", 1.0)
    own = 1.0 + 0.1 * math.log(factor)
    log_multiplier = m.number(f"{arch}.rope.scaling.yarn_log_multiplier", 0.0)
    if log_multiplier:
        raise UnsupportedError(f"[rope] '{arch}.rope.scaling.yarn_log_multiplier' must be 0 but is {log_multiplier}")
    if own <= 0:
        raise LoadError(f"[rope] '{arch}.rope.scaling.factor' must be 1 or above for YaRN but is {factor}")
    return RopeSpec(
        n_dims=n_dims,
        layout=layout,
        freq_base=base,
        freq_scale=1.0 / factor,
        ext_factor=1.0,
        attn_factor=attention,
        beta_fast=m.number(f"{arch}.rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=m.number(f"{arch}.rope.scaling.yarn_beta_slow", 1.0),
        n_ctx_orig=m.integer(
            f"{arch}.rope.scaling.original_context_length", m.integer(f"{arch}.context_length"), low=1
        ),
        factors=factors,
    )
