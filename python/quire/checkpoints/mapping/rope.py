"""A checkpoint's rotary parameters as GGUF keys."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

from ...errors import UnsupportedError
from ..reading.fields import Fields
from .changes import Array
from .keys import Value

Entry = tuple[str, str, Value]  # key below the architecture's name, type, value
_LOG = logging.getLogger("quire")
LONGROPE = ("longrope", "su")  # names of one scaling


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


def has_new_name(config: Fields) -> None:
    """UnsupportedError for a ``rope_scaling`` whose kind only the old name says, ``type``: models with parameters by
    layer read the new one alone.
    """
    scaling = config.inner("rope_scaling")
    if scaling.has("type") and not scaling.has("rope_type"):
        raise UnsupportedError("[convert] 'rope_scaling' must name its kind by 'rope_type' but has 'type'")


def rope_keys(config: Fields, theta: float = 10000.0, *, truncate: bool = True) -> Iterator[Entry]:
    """Base and scaling: default, linear, YaRN, dynamic, or llama 3's, which is a tensor.

    ``theta``: transformers' default.

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
    """Dynamic scaling changes nothing up to the context that the model was trained on; beyond it, Quire does not scale.

    UnsupportedError where it begins before that.
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


def mrope_keys(theta: float) -> Callable[[Fields], Iterator[Entry]]:
    """Of models with positions in time, height and width (Wang et al. 2024), which are equal in text.

    Configurations of old versions call the kind of scaling ``mrope``.
    """

    def keys(config: Fields) -> Iterator[Entry]:
        rope = rope_of(config)
        if sections := [int(str(n)) for n in rope.items("mrope_section")]:
            yield "rope.dimension_sections", "i32[]", [*sections, 0, 0, 0, 0][:4]
        rope.read(("mrope_interleaved",))  # how positions are mixed that are equal here
        if kind_of(rope) == "mrope":
            yield "rope.freq_base", "f32", theta_of(config, theta)
        else:
            yield from rope_keys(config, theta)

    return keys


def _yarn_keys(config: Fields, rope: Fields, truncate: bool) -> Iterator[Entry]:
    if rope.flag("truncate", True) != truncate:
        raise UnsupportedError(f"[convert] YaRN with truncate={not truncate} is not known")
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
    """How many dimensions of a head are rotated, by ``partial_rotary_factor``, wherever the configuration has it."""
    return int(
        head_dim * rope_of(config).number("partial_rotary_factor", config.number("partial_rotary_factor", default))
    )


def longrope_keys(config: Fields, n_ctx_orig: int, theta: float = 10000.0) -> Iterator[Entry]:
    """LongRoPE (Ding et al. 2024), whose frequencies are divided by one of two tensors, by the length of contexts."""
    rope = rope_of(config)
    if (n_ctx := config.integer("max_position_embeddings")) < n_ctx_orig:
        raise UnsupportedError(f"[convert] 'max_position_embeddings' must be at least {n_ctx_orig} but is {n_ctx}")
    factor = rope.number("factor", n_ctx / n_ctx_orig)
    own = math.sqrt(1 + math.log(factor) / math.log(n_ctx_orig)) if factor > 1 and n_ctx_orig > 1 else 1.0
    rope.read(("original_max_position_embeddings",))
    yield "rope.freq_base", "f32", theta_of(config, theta)
    yield "rope.scaling.original_context_length", "u32", n_ctx_orig
    yield "rope.scaling.attn_factor", "f32", rope.number("attention_factor", own)


def longrope_factors(rope: Fields, n_rot: int) -> Iterator[tuple[str, Array]]:
    """The two tensors that the frequencies are divided by: up to the original context and beyond it."""
    import numpy as np

    if kind_of(rope) not in LONGROPE:
        return
    for name in ("long", "short"):
        values = rope.items(f"{name}_factor")
        if len(values) != n_rot // 2 or not all(type(value) in (int, float) for value in values):
            raise UnsupportedError(
                f"[convert] '{name}_factor' of the rope scaling must be {n_rot // 2} numbers but is not"
            )
        yield f"rope_factors_{name}.weight", np.array(values, np.float32)


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
    with np.errstate(divide="ignore", invalid="ignore"):  # Llama 4's two limits are one, and nothing lies between
        between = (context / waves - low) / (high - low)
        mixed = 1 / ((1 - between) / factor + between)
    return np.where(waves < context / high, 1.0, np.where(waves > context / low, factor, mixed)).astype(np.float32)
