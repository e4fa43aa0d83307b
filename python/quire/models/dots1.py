"""dots.llm1 (Huo et al. 2025): Qwen3's attention, sigmoid routing, shared experts, first layers dense."""

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
    factor,
    flag,
    no_windows,
    u32,
)
from ..errors import UnsupportedError
from ..nn import ROUTING, ExpertConfig, Keys, Weights, rope_spec
from .base import Block, Decoder, DenseConfig, dense_then_experts
from .qwen3 import QK_NORMS, Attention

ARCHES = ("dots1",)


class Dots1(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(
            keys, config.n_layer, gating="sigmoid", normalize=False, grouped=True, reads=ROUTING
        )
        n_dense = keys.integer("leading_dense_block_count", 0)
        n_shared = keys.integer("expert_shared_count", high=64)
        mlp = dense_then_experts(config, experts, n_shared * experts.ffn_dim, n_dense)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Dots1

# --- checkpoint ---


def _windows_nowhere(config: Fields) -> None:
    no_windows(config)
    begin, n_layer = config.integer("max_window_layers", 62), config.integer("num_hidden_layers")
    if not config.items("layer_types") and not config.is_null("sliding_window") and begin < n_layer:
        raise UnsupportedError(f"[convert] unsupported 'max_window_layers': {begin} (expected at least {n_layer})")


_LAYER = "model.layers.{i}"
HF = {
    "Dots1ForCausalLM": Checkpoint(
        "dots1",
        {
            **DECODER_KEYS,
            "expert_count": u32("n_routed_experts", "num_local_experts"),
            "expert_used_count": u32("num_experts_per_tok"),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1408),
            "expert_shared_count": u32("n_shared_experts"),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
            "expert_weights_norm": flag("norm_topk_prob", default=False),
            "leading_dense_block_count": u32("first_k_dense_replace", default=0),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **QK_NORMS,
            "blk.{i}.exp_probs_b.bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
            **SHARED_EXPERT_TENSORS,
        },
        fixed={"hidden_act": SILU, "scoring_func": ("sigmoid", "noaux_tc"), "topk_method": ("noaux_tc",)},
        checks=(_windows_nowhere,),
        unused=("attention_bias", "moe_layer_freq", "num_nextn_predict_layers"),
    )
}
