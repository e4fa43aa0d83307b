"""Code World Model (Meta 2025) and Ministral 8B (Mistral AI 2024): Llama with windows in some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..checkpoints.mapping import Fields, Key, computed, f32, local_layers, rope_keys, u32
from ..nn import CacheSpec, Keys, Weights
from . import llama
from .llama import Llama

ARCHES = ("cwm",)


class Cwm(Llama):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        super().__init__(keys, weights, n_vocab)
        is_local = keys.integers("attention.sliding_window_pattern", self.config.n_layer, 0, high=1)
        self.windows = [self.window if local else 0 for local in is_local]

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Cwm

# --- checkpoint ---


def _by_four(config: Fields) -> Sequence[bool]:
    """Return the layers with windows: those of ``layer_types``, or all but the first of every four."""
    if config.items("layer_types"):
        return local_layers(config, 4)
    return [i % 4 != 0 for i in range(config.integer("num_hidden_layers"))]


def _all(config: Fields) -> Sequence[bool]:
    """Return the layers with windows: those of ``layer_types``, or all."""
    if config.is_null("sliding_window"):
        config.read(("layer_types",))
        return [False] * config.integer("num_hidden_layers")
    if config.items("layer_types"):
        return local_layers(config, 4)
    return [True] * config.integer("num_hidden_layers")


def _window(default: int) -> Key:
    return computed(
        "u32",
        lambda config: 0 if config.is_null("sliding_window") else config.integer("sliding_window", default, low=1),
    )


_LLAMA = llama.HF["LlamaForCausalLM"]
_HEADS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
HF = {
    "CwmForCausalLM": replace(
        _LLAMA,
        arch="cwm",
        keys={
            **_LLAMA.keys,
            **dict.fromkeys(_HEADS, u32("head_dim", default=128)),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.head_count_kv": u32("num_key_value_heads", default=8, low=1),
            "attention.sliding_window": _window(8192),
            "attention.sliding_window_pattern": computed("bool[]", _by_four),
        },
        checks=(),
        rope=lambda config: rope_keys(config, 1e6),
    ),
    "MinistralForCausalLM": replace(
        llama.HF["MistralForCausalLM"],
        arch="cwm",
        keys={
            **llama.HF["MistralForCausalLM"].keys,
            "attention.sliding_window": _window(4096),
            "attention.sliding_window_pattern": computed("bool[]", _all),
        },
        unused=(),
    ),
}
