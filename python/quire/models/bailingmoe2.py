"""Ling 2 and Ring 2 (Ling team 2025): query and key norms, partial RoPE, grouped sigmoid routing."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    factor,
    flag,
    no_windows,
    rope_keys,
    u32,
)
from ..checkpoints.mapping.rope import partial_rotary
from ..errors import UnsupportedError
from ..nn import ROUTING, ExpertConfig, Keys, Weights, rope_spec
from .base import MAX_DIM, Block, Decoder, DenseConfig, dense_then_experts, layers_left_out
from .llama import head_dim_of
from .openelm import Attention

ARCHES = ("bailingmoe2",)


class BailingMoe2(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        config = replace(config, n_layer=config.n_layer - layers_left_out(keys, weights, config.n_layer))
        experts = ExpertConfig.read(
            keys, config.n_layer, gating="sigmoid", normalize=False, grouped=True, reads=ROUTING
        )
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        shared_dim = keys.integer("expert_shared_feed_forward_length", experts.ffn_dim, low=1, high=MAX_DIM)
        shared_dim *= keys.integer("expert_shared_count", high=64)  # the key holds the width of one expert
        mlp = dense_then_experts(config, experts, shared_dim, n_dense_layers)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = BailingMoe2

# --- checkpoint ---


def shared_experts(config: Fields) -> None:
    """Require shared experts of the same width as the routed ones."""
    own = config.integer("moe_intermediate_size")
    if (size := config.integer("moe_shared_expert_intermediate_size", own)) != own:
        raise UnsupportedError(f"[convert] unsupported 'moe_shared_expert_intermediate_size': {size} (expected {own})")


def _n_rot(config: Fields) -> int:
    size = head_dim_of(config)
    part = partial_rotary(config, size, 0.5)
    if (n := config.integer("rotary_dim", part)) != part:
        raise UnsupportedError(f"[convert] 'rotary_dim' is {n}, but 'partial_rotary_factor' gives {part}")
    return part


_ATTENTION = "model.layers.{i}.attention"
_TEXT = Checkpoint(
    "bailingmoe2",
    {
        **DECODER_KEYS,
        "rope.dimension_count": computed("u32", _n_rot),
        "expert_count": u32("num_experts"),
        "expert_used_count": u32("num_experts_per_tok"),
        "expert_feed_forward_length": u32("moe_intermediate_size"),
        "expert_shared_count": u32("num_shared_experts"),
        "expert_group_count": u32("n_group", default=1, low=1),
        "expert_group_used_count": u32("topk_group", default=1, low=1),
        "expert_gating_func": computed("u32", lambda config: 2),
        "expert_weights_norm": flag("norm_topk_prob", default=True),
        "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
        "leading_dense_block_count": u32("first_k_dense_replace", default=0),
    },
    {
        **{ours: theirs for ours, theirs in DECODER_TENSORS.items() if not ours.endswith(("_q", "_k", "_v"))},
        **EXPERT_TENSORS,
        **SHARED_EXPERT_TENSORS,
        "token_embd": "model.word_embeddings",
        "blk.{i}.attn_qkv": f"{_ATTENTION}.query_key_value",
        "blk.{i}.attn_output": f"{_ATTENTION}.dense",
        "blk.{i}.attn_q_norm": f"{_ATTENTION}.query_layernorm",
        "blk.{i}.attn_k_norm": f"{_ATTENTION}.key_layernorm",
        "blk.{i}.exp_probs_b.bias": "model.layers.{i}.mlp.gate.expert_bias",
    },
    fixed={
        "hidden_act": SILU,
        "use_bias": (False,),
        "use_qkv_bias": (False,),
        "use_rmsnorm": (True,),
        "use_qk_norm": (True,),
        "norm_softmax": (False,),
        "norm_head": (False,),
        "score_function": ("sigmoid",),
        "moe_router_enable_expert_bias": (True,),
        "using_split_qkv_in_self_attention": (False,),
    },
    checks=(no_windows, shared_experts),
    unused=("router_dtype", "num_nextn_predict_layers", "mtp_loss_scaling_factor"),
    ignored=("model.layers.20.*", "model.layers.32.*"),  # layers that predict later tokens
)
HF = {
    "BailingMoeV2ForCausalLM": _TEXT,
    "SarvamMoEForCausalLM": replace(
        _TEXT,
        keys={
            **_TEXT.keys,
            "rope.dimension_count": computed("u32", lambda config: partial_rotary(config, head_dim_of(config), 1.0)),
            "leading_dense_block_count": u32("first_k_dense_replace", default=1),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
        },
        rope=lambda config: rope_keys(config, 8e6),
        ignored=(),
    ),
}
