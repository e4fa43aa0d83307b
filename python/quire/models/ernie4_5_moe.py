"""ERNIE 4.5 with experts (Baidu 2025): bias-corrected softmax routing, shared experts, first layers dense."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    rope_keys,
    squeezed,
    tensor,
    u32,
)
from ..errors import UnsupportedError
from ..nn import ExpertConfig, GatedMLP, Keys, Weights, experts_of, rope_spec
from .base import MAX_DIM, Block, Decoder, DenseConfig, Layer
from .llama import Attention

ARCHES = ("ernie4_5-moe",)


class Ernie45Moe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer)
        n_dense = keys.integer("leading_dense_block_count", 0)
        period = keys.integer("interleave_moe_layer_step", low=1)
        shared_dim = keys.integer("expert_shared_feed_forward_length", 0, high=MAX_DIM)
        keys.without_effect("expert_shared_count")  # the key above holds the width of all of them together

        def mlp(i: int, block: Weights) -> Layer:
            if i < n_dense or (i + 1) % period:
                return GatedMLP(block, config.dim, config.ffn_dim)
            return experts_of(block, config.dim, experts, shared_dim)

        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Ernie45Moe

# --- checkpoint ---


def _experts_to_the_end(config: Fields) -> None:
    end, n_layer = config.value("moe_layer_end_index"), config.integer("num_hidden_layers")
    if end not in (None, -1) and end != n_layer - 1:
        raise UnsupportedError(f"[convert] unsupported 'moe_layer_end_index': {end} (expected the last layer)")


def _shared_dim(config: Fields) -> int:
    return config.integer("moe_num_shared_experts", 2) * config.integer("moe_intermediate_size", 1536)


_LAYER = "model.layers.{i}"
HF = {
    "Ernie4_5_MoeForCausalLM": Checkpoint(
        "ernie4_5-moe",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "expert_count": u32("moe_num_experts", "num_experts", default=64),
            "expert_used_count": u32("moe_k", "num_experts_per_tok", default=6),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1536),
            "expert_shared_count": u32("moe_num_shared_experts", default=2),
            "expert_shared_feed_forward_length": computed("u32", _shared_dim),
            "leading_dense_block_count": u32("moe_layer_start_index", default=1),
            "interleave_moe_layer_step": u32("moe_layer_interval", default=1, low=1),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            "blk.{i}.exp_probs_b.bias": tensor(f"{_LAYER}.mlp.moe_statics.e_score_correction_bias", change=squeezed),
            **SHARED_EXPERT_TENSORS,
        },
        fixed={"hidden_act": SILU, "moe_norm_min": (1e-12,)},
        checks=(_experts_to_the_end,),
        rope=lambda config: rope_keys(config, 500000.0),
        tied=True,
        unused=("use_bias",),
        ignored=("model.mtp_*",),
    )
}
