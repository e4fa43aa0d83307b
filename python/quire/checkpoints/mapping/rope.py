"""A checkpoint's RoPE parameters as GGUF keys."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence

from ...errors import UnsupportedError
from ..reading.fields import Fields
from .changes import Array
from .keys import Value

Entry = tuple[str, str, Value]  # key below the architecture's name, type, value
_LOG = logging.getLogger("quire")
LONGROPE = ("longrope", "su")  # names of the same scaling


def rope_of(config: Fields, layers: str = "full_attention") -> Fields:
    """Return the RoPE parameters, from ``rope_parameters`` (transformers 5) or ``rope_scaling``.

    ``layers``: the kind of layers, if kinds have different parameters.
    """
    if config.has("rope_parameters"):
        inner = config.inner("rope_parameters")
        return inner.inner(layers) if inner.has("full_attention") or inner.has("sliding_attention") else inner
    return config.inner("rope_scaling")


def theta_of(config: Fields, default: float = 10000.0) -> float:
    """Return the base of the frequencies."""
    rope = rope_of(config)
    config.read(("rope_theta",))  # used only if the other is absent
    return rope.number("rope_theta") if rope.has("rope_theta") else config.number("rope_theta", default)


def kind_of(rope: Fields) -> str:
    kind = rope.text("rope_type", rope.text("type", "default"))
    rope.read(("type",))
    return kind


def has_new_name(config: Fields) -> None:
    """Raise UnsupportedError for a ``rope_scaling`` with the old name ``type``.

    Models with parameters for each kind of layer read only ``rope_type``.
    """
    scaling = config.inner("rope_scaling")
    if scaling.has("type") and not scaling.has("rope_type"):
        raise UnsupportedError("[convert] unsupported 'type' in 'rope_scaling': expected 'rope_type'")


def rope_keys(config: Fields, theta: float = 10000.0, *, truncate: bool = True) -> Iterator[Entry]:
    """Yield base and scaling: default, linear, YaRN, dynamic, or Llama 3's, which is a tensor.

    ``theta``: transformers' default of the base.  ``truncate``: the ends of YaRN's ramp are rounded.
    """
    rope = rope_of(config)
    kind = kind_of(rope)
    yield "rope.freq_base", "f32", theta_of(config, theta)
    if kind == "linear":
        yield "rope.scaling.type", "string", "linear"
        yield "rope.scaling.factor", "f32", rope.number("factor")
    elif kind == "yarn":
        yield from yarn_keys(config, rope, truncate)
    elif kind == "llama3":
        _llama3_fields(rope)
    elif kind == "dynamic":
        _settle_dynamic(config, rope)
    elif kind != "default":
        raise UnsupportedError(
            f"[convert] unsupported rope scaling '{kind}': expected default, linear, yarn, dynamic or llama3"
        )
    if kind != "yarn":
        rope.read(("original_max_position_embeddings",) if kind != "llama3" else ())
    _settle_partial(config, rope, kind)


def _settle_dynamic(config: Fields, rope: Fields) -> None:
    """Ignore dynamic scaling, which has no effect up to the trained context length; beyond it, Quire does not scale.

    Raises:
        UnsupportedError: The scaling begins before that length.
    """
    rope.read(("factor",))
    longest = config.integer("max_position_embeddings")
    if (begin := rope.integer("original_max_position_embeddings", longest)) < longest:
        raise UnsupportedError(
            f"[convert] unsupported rope scaling 'dynamic' from {begin} positions on: expected {longest},"
            " max_position_embeddings"
        )
    _LOG.warning("[convert] ignoring dynamic rope scaling, which begins beyond %d positions", longest)


def _settle_partial(config: Fields, rope: Fields, kind: str) -> None:
    """Raise UnsupportedError for partly rotated heads, unless the architecture has asked for that.

    Transformers' models without this option rotate all of a head, unless the frequencies are scaled.
    """
    name = "partial_rotary_factor"
    for fields in (config, rope):
        if not fields.has(name) or fields.was_read(name):
            continue
        if fields.value(name) != 1 and (kind != "default" or config.knows(name)):
            raise UnsupportedError(f"[convert] unsupported '{name}' of {fields.where}: {fields.value(name)}")


def mrope_keys(theta: float, default: Sequence[int] = ()) -> Callable[[Fields], Iterator[Entry]]:
    """Return the RoPE keys of models with positions in time, height and width (Wang et al. 2024), equal in text.

    Old configurations call this kind of scaling ``mrope``.  ``default``: transformers' sections.
    """

    def keys(config: Fields) -> Iterator[Entry]:
        rope = rope_of(config)
        if sections := [int(str(n)) for n in rope.items("mrope_section")] or default:
            yield "rope.dimension_sections", "i32[]", [*sections, 0, 0, 0, 0][:4]
        rope.read(("mrope_interleaved",))  # without effect: text positions are equal
        if kind_of(rope) == "mrope":
            yield "rope.freq_base", "f32", theta_of(config, theta)
        else:
            yield from rope_keys(config, theta)

    return keys


def yarn_keys(config: Fields, rope: Fields, truncate: bool = True) -> Iterator[Entry]:
    if rope.flag("truncate", True) != truncate:
        raise UnsupportedError(f"[convert] unsupported YaRN with truncate={not truncate}")
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
    own = attention = 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
    scale, all_scale = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if scale and all_scale:
        attention = (1.0 + (own - 1.0) * scale) / (1.0 + (own - 1.0) * all_scale)
    attention = rope.number("attention_factor", attention)
    if attention != own:
        yield "rope.scaling.attn_factor", "f32", attention / own


def partial_rotary(config: Fields, head_dim: int, default: float = 1.0) -> int:
    """Return how many dimensions of a head are rotated, by ``partial_rotary_factor``."""
    return int(
        head_dim * rope_of(config).number("partial_rotary_factor", config.number("partial_rotary_factor", default))
    )


def longrope_keys(config: Fields, n_ctx_orig: int, theta: float = 10000.0) -> Iterator[Entry]:
    """Yield the keys of LongRoPE (Ding et al. 2024), which has two tensors of frequency factors."""
    rope = rope_of(config)
    if (n_ctx := config.integer("max_position_embeddings")) < n_ctx_orig:
        raise UnsupportedError(
            f"[convert] 'max_position_embeddings' {n_ctx} is below the original context length {n_ctx_orig}"
        )
    factor = rope.number("factor", n_ctx / n_ctx_orig)
    own = math.sqrt(1 + math.log(factor) / math.log(n_ctx_orig)) if factor > 1 and n_ctx_orig > 1 else 1.0
    rope.read(("original_max_position_embeddings",))
    yield "rope.freq_base", "f32", theta_of(config, theta)
    yield "rope.scaling.original_context_length", "u32", n_ctx_orig
    yield "rope.scaling.attn_factor", "f32", rope.number("attention_factor", own)


def longrope_factors(rope: Fields, n_rot: int) -> Iterator[tuple[str, Array]]:
    """Yield the two tensors of frequency factors: for contexts up to the original length, and for longer ones."""
    import numpy as np

    if kind_of(rope) not in LONGROPE:
        return
    for name in ("long", "short"):
        values = rope.items(f"{name}_factor")
        if len(values) != n_rot // 2 or not all(type(value) in (int, float) for value in values):
            raise UnsupportedError(
                f"[convert] invalid '{name}_factor' of the rope scaling: expected {n_rot // 2} numbers"
            )
        yield f"rope_factors_{name}.weight", np.array(values, np.float32)


def _llama3_fields(rope: Fields) -> tuple[float, float, float, int]:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    factor, low, high = (rope.number(name) for name in names)
    return factor, low, high, rope.integer("original_max_position_embeddings")


def llama3_factors(rope: Fields, base: float, n_rot: int) -> Array | None:
    """Return the divisors of the frequencies (Grattafiori et al. 2024): 1 for short waves, ``factor`` for long ones."""
    import numpy as np

    if kind_of(rope) != "llama3":
        return None
    factor, low, high, context = _llama3_fields(rope)
    waves = 2 * np.pi * base ** (np.arange(0, n_rot, 2) / n_rot)
    with np.errstate(divide="ignore", invalid="ignore"):  # Llama 4's two limits are equal
        between = (context / waves - low) / (high - low)
        mixed = 1 / ((1 - between) / factor + between)
    return np.where(waves < context / high, 1.0, np.where(waves > context / low, factor, mixed)).astype(np.float32)
