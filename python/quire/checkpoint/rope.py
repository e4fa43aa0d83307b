"""A checkpoint's rotary parameters as GGUF keys."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..errors import UnsupportedError
from .changes import Array
from .fields import Fields
from .keys import Value

Entry = tuple[str, str, Value]  # key below the architecture's name, type, value


def rope_of(config: Fields, layers: str = "full_attention") -> Fields:
    """The rotary parameters, wherever the configuration keeps them (``rope_parameters`` since transformers 5).

    ``layers``: of which layers, where the kinds of layers differ.
    """
    if config.has("rope_parameters"):
        inner = config.inner("rope_parameters")
        return inner.inner(layers) if inner.has("full_attention") or inner.has("sliding_attention") else inner
    return config.inner("rope_scaling")


def theta_of(config: Fields, default: float = 10000.0) -> float:
    """The base of the frequencies."""
    rope = rope_of(config)
    config.read(("rope_theta",))  # it counts only where the other is absent
    return rope.number("rope_theta") if rope.has("rope_theta") else config.number("rope_theta", default)


def kind_of(rope: Fields) -> str:
    kind = rope.text("rope_type", rope.text("type", "default"))
    rope.read(("type",))
    return kind


def rope_keys(config: Fields, theta: float = 10000.0, *, truncate: bool = True) -> Iterator[Entry]:
    """Base and scaling: default, linear, YaRN, or llama 3's, which is a tensor.  ``theta``: transformers' default.

    ``truncate``: whether the ends of YaRN's ramp are whole numbers.
    """
    rope = rope_of(config)
    kind = kind_of(rope)
    yield "rope.freq_base", "f32", theta_of(config, theta)
    if kind == "linear":
        yield "rope.scaling.type", "string", "linear"
        yield "rope.scaling.factor", "f32", rope.number("factor")
    elif kind == "yarn":
        yield from _yarn_keys(config, rope, truncate)
    elif kind == "llama3":
        _llama3_fields(rope)
    elif kind != "default":
        raise UnsupportedError(f"[convert] the rope scaling must be default, linear, yarn or llama3 but is '{kind}'")
    if kind != "yarn":
        rope.read(("original_max_position_embeddings",) if kind != "llama3" else ())


def _yarn_keys(config: Fields, rope: Fields, truncate: bool) -> Iterator[Entry]:
    if rope.has("mscale") or rope.has("mscale_all_dim") or rope.flag("truncate", True) != truncate:
        raise UnsupportedError(f"[convert] YaRN with mscale, mscale_all_dim or truncate={not truncate} is not known")
    factor = rope.number("factor")
    context = config.integer("max_position_embeddings")
    yield "rope.scaling.type", "string", "yarn"
    yield "rope.scaling.factor", "f32", factor
    yield (
        "rope.scaling.original_context_length",
        "u32",
        rope.integer("original_max_position_embeddings", context),
    )
    for name in ("beta_fast", "beta_slow"):
        if rope.has(name):
            yield f"rope.scaling.yarn_{name}", "f32", rope.number(name)
    if rope.has("attention_factor"):
        own = 1.0 + 0.1 * math.log(factor)
        yield "rope.scaling.attn_factor", "f32", rope.number("attention_factor") / own


def _llama3_fields(rope: Fields) -> tuple[float, float, float, int]:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    factor, low, high = (rope.number(name) for name in names)
    return factor, low, high, rope.integer("original_max_position_embeddings")


def llama3_factors(rope: Fields, base: float, n_rot: int) -> Array | None:
    """What each frequency is divided by (Grattafiori et al. 2024): 1 for short waves, ``factor`` for long ones."""
    import numpy as np

    if kind_of(rope) != "llama3":
        return None
    factor, low, high, context = _llama3_fields(rope)
    waves = 2 * np.pi * base ** (np.arange(0, n_rot, 2) / n_rot)
    between = (context / waves - low) / (high - low)
    mixed = 1 / ((1 - between) / factor + between)
    return np.where(waves < context / high, 1.0, np.where(waves > context / low, factor, mixed)).astype(np.float32)
