"""MiniMax M2 (MiniMax 2025): norms of whole q and k rows, partial RoPE, bias-corrected sigmoid routing."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    rope_keys,
    u32,
)
from ..checkpoints.mapping.rope import rope_of
from ..nn import ExpertConfig, Keys, MoE, Weights, rope_spec
from .base import Block, Decoder, DenseConfig
from .olmo2 import Attention

ARCHES = ("minimax-m2",)


class MiniMaxM2(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", reads=("expert_gating_func",))
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation),
                MoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec()),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = MiniMaxM2

# --- checkpoint ---


def _n_rot(config: Fields) -> int:
    head_dim, rope = config.integer("head_dim", 128), rope_of(config)
    rotary_dim = config.integer("rotary_dim", head_dim)
    share = config.number("partial_rotary_factor", rotary_dim / head_dim)
    return int(head_dim * rope.number("partial_rotary_factor", share))


_LAYER = "model.layers.{i}"
_MOE = f"{_LAYER}.block_sparse_moe"
HF = {
    "MiniMaxM2ForCausalLM": Checkpoint(
        "minimax-m2",
        {
            **DECODER_KEYS,
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "rope.dimension_count": computed("u32", _n_rot),
            "expert_count": u32("num_local_experts", "num_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("intermediate_size", default=1536),
            "expert_gating_func": computed("u32", lambda config: 2),
        },
        {
            **DECODER_TENSORS,
            "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
            "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
            "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
            "blk.{i}.ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
            "blk.{i}.ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
            "blk.{i}.ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
            "blk.{i}.exp_probs_b.bias": f"{_MOE}.e_score_correction_bias",
        },
        fixed={
            "hidden_act": SILU,
            "scoring_func": ("sigmoid",),
            "use_qk_norm": (True,),
            "qk_norm_type": ("per_layer",),
            "use_routing_bias": (True,),
        },
        rope=lambda config: rope_keys(config, 5e6),
        unused=("router_jitter_noise", "use_mtp", "num_mtp_modules", "mtp_transformer_layers"),
    )
}
