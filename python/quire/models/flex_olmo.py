"""FlexOlmo (Shi et al. 2025): OLMo 2 with experts that were trained apart, whose probabilities are not normalized."""

from __future__ import annotations

from ..checkpoints.mapping import EXPERT_TENSORS, SILU, Checkpoint, f32, flag, rope_keys, u32
from ..nn import ExpertConfig, Keys, MoE, Weights, rope_spec
from . import olmo2
from .base import Decoder, DenseConfig, PostNormBlock
from .olmo2 import Attention

ARCHES = ("flex_olmo",)


class FlexOlmo(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(
            keys, config.n_layer, normalize=False, ffn_dim=config.ffn_dim, reads=("expert_weights_norm",)
        )
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            PostNormBlock(
                config,
                block,
                Attention(config, block, i, rotation),
                MoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec()),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = FlexOlmo

# --- checkpoint ---

_OLMO2 = olmo2.HF["Olmo2ForCausalLM"]
HF = {
    "FlexOlmoForCausalLM": Checkpoint(
        "flex_olmo",
        {
            **_OLMO2.keys,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
            "expert_count": u32("num_experts", "num_local_experts", default=7),
            "expert_used_count": u32("num_experts_per_tok", default=5),
            "expert_weights_norm": flag("norm_topk_prob", default=False),
        },
        {**{ours: theirs for ours, theirs in _OLMO2.tensors.items() if ".ffn_" not in ours}, **EXPERT_TENSORS},
        fixed={"hidden_act": SILU},
        rope=lambda config: rope_keys(config, 500000.0),
        unused=("attention_bias",),
    )
}
