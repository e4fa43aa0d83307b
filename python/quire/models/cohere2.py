"""Command R7B and Command A (Cohere 2025): windowed layers with RoPE, full-attention layers without."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, has_windows, local_layers, u32
from ..nn import CacheSpec, Keys, RopeSpec, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .base import local_layers as locals_of
from .command_r import KEYS, TENSORS, CommandR

ARCHES = ("cohere2",)
PERIOD = 4  # every fourth layer has full attention


class Cohere2(CommandR):
    def rotations(self, keys: Keys, weights: Weights, config: DenseConfig) -> Sequence[RopeSpec | None]:
        window = keys.integer("attention.sliding_window", low=1)
        self.windows = [window if is_local else 0 for is_local in locals_of(keys, config.n_layer, PERIOD)]
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        keys.only("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))
        return [rotation if window else None for window in self.windows]

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Cohere2

# --- checkpoint ---


def _window(config: Fields) -> int:
    has_windows(config)
    return config.integer("sliding_window", 4096, low=1)


def _pattern(config: Fields) -> Sequence[bool]:
    """Return the layers with windows, by ``layer_types`` or, without that, ``sliding_window_pattern``."""
    if config.items("layer_types"):
        config.read(("sliding_window_pattern",))
        return local_layers(config, PERIOD)
    return local_layers(config, config.integer("sliding_window_pattern", PERIOD, low=1))


HF = {
    "Cohere2ForCausalLM": Checkpoint(
        "cohere2",
        {
            **KEYS,
            "attention.sliding_window": computed("u32", _window),
            "attention.sliding_window_pattern": computed("bool[]", _pattern),
            "vocab_size": u32("vocab_size"),
        },
        TENSORS,
        fixed={
            "hidden_act": SILU,
            "rotary_pct": (1.0,),
            "layer_switch": (PERIOD,),
            "order_of_interleaved_layers": ("local_attn_first",),
            "position_embedding_type": ("rope_gptj",),
            "use_gated_activation": (True,),
            "use_parallel_block": (True,),
            "use_qk_norm": (False,),
        },
        tied=True,
        unused=(
            "attention_bias",
            "cache_implementation",
            "use_embedding_sharing",
            "use_parallel_embedding",
            "rms_norm_eps",
        ),
    )
}
