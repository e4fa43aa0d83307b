"""Qwen1.5 and Qwen2 with experts (Yang et al. 2024): routed experts, and a shared expert gated by a sigmoid."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    computed,
    no_windows,
    only_experts,
    squeezed,
    tensor,
    u32,
)
from ..nn import ExpertConfig, Keys, MoE, SharedExpert, Together, Weights, rope_spec
from .base import MAX_DIM, Block, Decoder, DenseConfig
from .llama import Attention

ARCHES = ("qwen2moe",)


class Qwen2Moe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        # The chosen experts' probabilities are not normalized.
        experts = ExpertConfig.read(keys, config.n_layer, normalize=False, reads=("expert_weights_norm",))
        shared_dim = keys.integer("expert_shared_feed_forward_length", config.ffn_dim, low=1, high=MAX_DIM)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation),
                Together(
                    MoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec()),
                    SharedExpert(block, config.dim, shared_dim, is_weighed=True),
                ),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Qwen2Moe

# --- checkpoint ---


HF = {
    "Qwen2MoeForCausalLM": Checkpoint(
        "qwen2moe",
        {
            **DECODER_KEYS,
            "expert_count": u32("num_experts", default=60),
            "expert_used_count": u32("num_experts_per_tok", default=4),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1408),
            "expert_shared_feed_forward_length": u32("shared_expert_intermediate_size", default=5632),
            "expert_weights_norm": computed("bool", lambda config: config.flag("norm_topk_prob", False) or None),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            "blk.{i}.ffn_gate_inp_shexp": tensor("model.layers.{i}.mlp.shared_expert_gate", change=squeezed),
            "blk.{i}.ffn_gate_shexp": "model.layers.{i}.mlp.shared_expert.gate_proj",
            "blk.{i}.ffn_up_shexp": "model.layers.{i}.mlp.shared_expert.up_proj",
            "blk.{i}.ffn_down_shexp": "model.layers.{i}.mlp.shared_expert.down_proj",
        },
        fixed={"hidden_act": SILU, "qkv_bias": (True,)},
        checks=(no_windows, only_experts),
    )
}
