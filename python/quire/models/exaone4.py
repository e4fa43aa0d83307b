"""EXAONE 4 (LG AI Research 2025): post-norms, query and key norms; layers have windows, or no RoPE."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, Fields, computed, f32, local_layers
from ..nn import CacheSpec, GatedMLP, Keys, Step, Tensor, Weights, frequency_factors, rope_spec
from .base import Decoder, DenseConfig, PostNormBlock
from .base import local_layers as locals_of
from .qwen3 import QK_NORMS, Attention

ARCHES = ("exaone4",)
PERIOD = 4  # every fourth layer has full attention


class WithoutPositions(Attention):
    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = self.q_norm(self.q(x).heads(self.n_head))
        k = self.k_norm(self.k(x).heads(self.n_kv_head))
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Exaone4(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        window = keys.integer("attention.sliding_window", 0)
        local = locals_of(keys, config.n_layer, PERIOD)
        self.windows = [window if is_local else 0 for is_local in local]
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        kinds = [Attention if is_local or not window else WithoutPositions for is_local in local]
        blocks = [
            PostNormBlock(
                config, block, kinds[i](config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Exaone4

# --- checkpoint ---


def window_of(config: Fields) -> int | None:
    return None if config.is_null("sliding_window") else config.integer("sliding_window", 4096, low=1)


def pattern_of(config: Fields) -> Sequence[bool] | None:
    """Return the layers with windows, by ``layer_types`` or, without that, ``sliding_window_pattern``."""
    if config.items("layer_types"):
        config.read(("sliding_window_pattern",))
        local = local_layers(config, PERIOD)
    elif window_of(config) is None:
        config.read(("sliding_window_pattern",))
        return None
    else:
        local = local_layers(config, config.integer("sliding_window_pattern", PERIOD, low=1))
    return None if window_of(config) is None else local


_LAYER = "model.layers.{i}"
HF = {
    "Exaone4ForCausalLM": Checkpoint(
        "exaone4",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.sliding_window": computed("u32", window_of),
            "attention.sliding_window_pattern": computed("bool[]", pattern_of),
        },
        {
            **{k: v for k, v in DECODER_TENSORS.items() if not k.endswith(("attn_norm", "ffn_norm"))},
            **QK_NORMS,
            "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
        },
        fixed={"hidden_act": SILU},
    )
}
