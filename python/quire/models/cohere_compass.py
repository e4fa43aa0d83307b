"""Classes whose forward pass is that of Cohere 2: North Micro Vision (text)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.mapping import (
    Entry,
    Fields,
    computed,
    factor,
    has_windows,
    interleaved,
    layers_of_type,
    only_with,
    tensor,
    with_pictures,
)
from ..checkpoints.mapping.rope import kind_of
from ..errors import UnsupportedError
from . import cohere2

# --- checkpoint ---

_COHERE2 = cohere2.HF["Cohere2ForCausalLM"]


def _pattern(config: Fields) -> list[bool]:
    return layers_of_type(config, "sliding_attention") or [False] * config.integer("num_hidden_layers")


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the base: layers with a window rotate, others do not, as in Cohere 2."""
    kinds, local = config.inner("rope_parameters"), _pattern(config)
    rope = kinds.inner("sliding_attention")
    kinds.read(("rope_theta", "rope_type"))  # dangling in published files
    if not all(local) and not kinds.is_null("full_attention"):
        raise UnsupportedError("[convert] unsupported 'rope_parameters' for full_attention: expected null")
    if any(local) and not rope.names():
        raise UnsupportedError("[convert] 'rope_parameters' has no entry for sliding_attention")
    if (kind := kind_of(rope)) != "default":
        raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}' for sliding_attention: expected default")
    rope.read(("mrope_section", "mrope_interleaved"))  # without effect: text positions are equal
    yield "rope.freq_base", "f32", rope.number("rope_theta", 10000.0)


def _window(config: Fields) -> int:
    has_windows(config)
    return config.integer("sliding_window", 4096, low=1)


_ROTATED = {
    f"blk.{{i}}.attn_{one}": tensor(
        f"model.layers.{{i}}.self_attn.{one}_proj",
        change=only_with("attention_bias", default=False, biases=True, change=interleaved(heads)),
    )
    for one, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
}
_TEXT = replace(
    _COHERE2,
    keys={
        **_COHERE2.keys,
        "logit_scale": factor("logit_scale", default=1.0),
        "attention.sliding_window": computed("u32", _window),
        "attention.sliding_window_pattern": computed("bool[]", _pattern),
    },
    tensors={**_COHERE2.tensors, **_ROTATED},
    rope=_rope,
    unused=(*_COHERE2.unused, "pooling"),
)
HF = {
    "CohereCompassForCausalLM": _TEXT,
    "CohereCompassForConditionalGeneration": replace(with_pictures(_TEXT), ignored=("model.visual.*",)),
}
