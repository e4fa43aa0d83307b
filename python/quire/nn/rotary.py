"""Read rotary position embeddings from a file's keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .._native.graph import RopeSpec, Weight
from ..errors import LoadError, UnsupportedError
from .keys import Keys
from .weights import Weights

Layout = Literal["half", "interleaved"]
KINDS = ("none", "linear", "yarn")
YARN_KEYS = ("original_context_length", "yarn_*")  # below rope.scaling; without effect unless the type is yarn


@dataclass(frozen=True)
class Scaling:
    """The keys ``rope.scaling.*``, which stretch positions."""

    kind: str
    factor: float
    attention: float  # factor of queries and keys, beyond YaRN's own

    @classmethod
    def read(cls, keys: Keys) -> Scaling:
        """Read the keys.  A factor without a type means linear; old files call it ``rope.scale_linear``."""
        kind = keys.text("rope.scaling.type", "linear")
        if kind not in KINDS:
            expected = ", ".join(KINDS)
            raise UnsupportedError(
                f"[rope] unsupported '{keys.full('rope.scaling.type')}': '{kind}' (expected one of {expected})"
            )
        factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0  # 0: not set
        if factor < 1e-6 or (kind == "yarn" and factor < 1):
            least = "1 or more for YaRN" if kind == "yarn" else "more than 0"
            name = keys.full("rope.scaling.factor")
            raise LoadError(f"[rope] '{name}' {factor} is out of range: expected {least}")
        attention = keys.number("rope.scaling.attn_factor", 1.0)
        keys.without_effect("rope.scaling.finetuned")
        if kind != "yarn":
            keys.without_effect(*(f"rope.scaling.{name}" for name in YARN_KEYS))
        elif keys.has("rope.scaling.yarn_attn_factor"):
            # YaRN multiplies by 1 + 0.1 ln(factor); the key's value replaces that.
            attention *= keys.number("rope.scaling.yarn_attn_factor") / (1.0 + 0.1 * math.log(factor))
        return cls(kind, 1.0 if kind == "none" else factor, attention)


def frequency_factors(weights: Weights, n_dims: int) -> Weight | None:
    """Return the divisors of the frequencies (Llama 3), or None if the file has none."""
    return (
        weights.tensor("rope_freqs.weight", (n_dims // 2,), vector=True) if weights.has("rope_freqs.weight") else None
    )


def rope_spec(
    keys: Keys,
    *,
    n_dims: int,
    layout: Layout,
    freq_base: float | None = None,
    factors: Weight | None = None,
    attn_factor: float | None = None,
    sections: Sequence[int] = (),
    take_turns: bool = True,
) -> RopeSpec:
    """Read the rotation that ``rope.*`` describes: without scaling, linear, or YaRN.

    Args:
        keys: The file's keys.
        n_dims: How many dimensions of a head are rotated; the first ones.
        layout: "half" rotates dimension i with i + n_dims / 2, "interleaved" 2 i with 2 i + 1.
        freq_base: Replaces the file's base; scaling then does not apply (Gemma 3's local layers).
        factors: See ``frequency_factors``.
        attn_factor: Scales queries and keys in place of the file's factor; YaRN's own factor still applies.
        sections: Number of pairs that rotate by time, by height and by width; empty: all by the position.
        take_turns: The sections are interleaved.

    Raises:
        LoadError: A value is out of range.
        UnsupportedError: The kind of scaling is unknown.
    """
    scaling = Scaling.read(keys)
    counts = (sections[0], sections[1], sections[2]) if sections else (0, 0, 0)
    base = keys.number("rope.freq_base", 10000.0) if freq_base is None else freq_base
    if base <= 0:
        raise LoadError(f"[rope] the base of the frequencies {base} is out of range: expected more than 0")
    if freq_base is not None:
        return RopeSpec(n_dims=n_dims, layout=layout, freq_base=base, attn_factor=scaling.attention)
    if scaling.kind != "yarn":
        return RopeSpec(
            n_dims=n_dims,
            layout=layout,
            freq_base=base,
            freq_scale=1.0 / scaling.factor,
            attn_factor=scaling.attention,
            factors=factors,
            sections=counts,
            take_turns=take_turns and bool(sections),
        )
    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if attn_factor is None:
        attn_factor = scaling.attention / (1.0 + 0.1 * log_multiplier * math.log(scaling.factor))
    keys.only("rope.scaling.yarn_ext_factor", -1.0, 1.0)
    return RopeSpec(
        n_dims=n_dims,
        layout=layout,
        freq_base=base,
        freq_scale=1.0 / scaling.factor,
        ext_factor=1.0,
        attn_factor=attn_factor,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        n_ctx_orig=keys.integer("rope.scaling.original_context_length", keys.integer("context_length"), low=1),
        factors=factors,
        sections=counts,
        take_turns=take_turns and bool(sections),
    )


class LongRope:
    """Two rotations (Ding et al. 2024): for contexts of up to the original length, and for longer ones."""

    def __init__(self, keys: Keys, weights: Weights, n_rot: int) -> None:
        self.n_ctx_orig = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
        self.short, self.long = (self._rotation(keys, weights, n_rot, name) for name in ("short", "long"))

    @staticmethod
    def _rotation(keys: Keys, weights: Weights, n_rot: int, name: str) -> RopeSpec:
        tensor = f"rope_factors_{name}.weight"
        factors = weights.tensor(tensor, (n_rot // 2,), vector=True) if weights.has(tensor) else None
        return rope_spec(keys, n_dims=n_rot, layout="half", factors=factors)

    def of(self, n_ctx: int) -> RopeSpec:
        return self.long if n_ctx > self.n_ctx_orig else self.short
