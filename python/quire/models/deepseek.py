"""DeepSeek MoE (Dai et al. 2024): Llama with fine-grained and shared experts, first layers dense."""

from __future__ import annotations

from typing import ClassVar

from ..checkpoints.mapping import (
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Checkpoint,
    computed,
    f32,
    no_windows,
    u32,
)
from ..nn import ExpertConfig, Keys, Weights, frequency_factors, rope_spec
from ..nn.rotary import Layout
from . import llama
from .base import Block, Decoder, DenseConfig, dense_then_experts

ARCHES = ("deepseek",)


class DeepSeek(Decoder):
    """Files store q and k interleaved, as for Llama.  The chosen experts' probabilities are not normalized."""

    READS: ClassVar[tuple[str, ...]] = ("expert_weights_scale",)
    LAYOUT: ClassVar[Layout] = "interleaved"
    ROTATES_ALL: ClassVar[bool] = False

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, rotates_all=self.ROTATES_ALL)
        experts = ExpertConfig.read(keys, config.n_layer, normalize=False, reads=self.READS)
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        n_shared = keys.integer("expert_shared_count", high=64)
        mlp = dense_then_experts(config, experts, n_shared * experts.ffn_dim, n_dense_layers)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout=self.LAYOUT, factors=frequency_factors(weights, config.n_rot)
        )
        blocks = [
            Block(config, block, llama.Attention(config, block, i, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = DeepSeek

# --- checkpoint ---

HF = {
    "DeepseekForCausalLM": Checkpoint(
        "deepseek",
        {
            **llama.KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
            "expert_count": u32("n_routed_experts"),
            "expert_used_count": u32("num_experts_per_tok"),
            "expert_feed_forward_length": u32("moe_intermediate_size"),
            "expert_shared_count": u32("n_shared_experts", default=0),
            "expert_weights_scale": computed("f32", lambda config: 1.0),
            "leading_dense_block_count": u32("first_k_dense_replace", default=0),
        },
        {**llama.TENSORS, **EXPERT_TENSORS, **SHARED_EXPERT_TENSORS},
        fixed={
            "hidden_act": SILU,
            "norm_topk_prob": (False,),
            "scoring_func": ("softmax",),
            "moe_layer_freq": (1,),
            "attention_bias": (False,),
        },
        checks=(no_windows,),
        unused=("aux_loss_alpha", "seq_aux"),
    )
}
