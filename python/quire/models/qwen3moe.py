"""Qwen3 with experts (Yang et al. 2025): Qwen3's attention, experts in every layer."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    no_windows,
    only_experts,
    u32,
)
from ..nn import Keys, MoE, MoeSpec, Weights, frequency_factors, rope_spec
from .base import MAX_DIM, Block, Decoder, DenseConfig
from .qwen3 import QK_NORMS, Attention

ARCHES = ("qwen3moe",)


class Qwen3Moe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int, sections: Sequence[int] = ()) -> None:
        config = DenseConfig.read(keys, n_vocab)
        n_expert = keys.integer("expert_count", low=1, high=4096)
        n_used = keys.same("expert_used_count", config.n_layer, low=1, high=n_expert)
        expert_dim = keys.same(
            "expert_feed_forward_length", config.n_layer, config.ffn_dim // n_used, low=1, high=MAX_DIM
        )
        keys.only("expert_group_count", 0, 1)
        keys.without_effect("expert_group_used_count")
        # Expert probabilities are normalized by default; files have the key only if they are not.
        spec = MoeSpec(n_used=n_used, activation="silu", normalize=keys.flag("expert_weights_norm", True))
        factors = frequency_factors(weights, config.n_rot)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=factors, sections=sections)
        blocks = [
            Block(
                config, block, Attention(config, block, i, rotation), MoE(block, config.dim, expert_dim, n_expert, spec)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Qwen3Moe

# --- checkpoint ---


def _unless_normalized(config: Fields) -> bool | None:
    return None if config.flag("norm_topk_prob", False) else False


HF = {
    "Qwen3MoeForCausalLM": Checkpoint(
        "qwen3moe",
        {
            **DECODER_KEYS,
            "expert_count": u32("num_experts", "num_local_experts", default=128),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=768),
            "expert_weights_norm": computed("bool", _unless_normalized),
        },
        {**DECODER_TENSORS, **EXPERT_TENSORS, **QK_NORMS},
        fixed={"hidden_act": SILU},
        checks=(no_windows, only_experts),
        unused=("attention_bias",),
    )
}
