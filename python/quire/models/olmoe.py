"""OLMoE (Muennighoff et al. 2024): norms of whole q and k rows, expert probabilities without normalization."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, EXPERT_TENSORS, SILU, Checkpoint, computed, f32, u32
from ..nn import ExpertConfig, Keys, MoE, Weights, rope_spec
from .base import Block, Decoder, DenseConfig
from .olmo2 import Attention

ARCHES = ("olmoe",)


class Olmoe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(
            keys, config.n_layer, normalize=False, ffn_dim=config.ffn_dim, reads=("expert_weights_norm",)
        )
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


MODEL = Olmoe

# --- checkpoint ---

HF = {
    "OlmoeForCausalLM": Checkpoint(
        "olmoe",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "expert_count": u32("num_experts", "num_local_experts", default=64),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_weights_norm": computed("bool", lambda config: config.flag("norm_topk_prob", False) or None),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
            "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
        },
        fixed={"hidden_act": SILU, "clip_qkv": (None,)},
        unused=("attention_bias",),
    )
}
