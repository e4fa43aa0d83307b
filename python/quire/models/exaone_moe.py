"""K-EXAONE (LG AI Research 2025): EXAONE 4's attention with pre-norms, sigmoid routing, shared experts."""

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
    f32,
    factor,
    flag,
    has_windows,
    n_dense,
    u32,
)
from ..nn import (
    ROUTING,
    CacheSpec,
    ExpertConfig,
    Keys,
    Weights,
    frequency_factors,
    rope_spec,
)
from . import exaone4, qwen3
from .base import MAX_DIM, Block, Decoder, DenseConfig, dense_then_experts, layers_left_out, local_layers

ARCHES = ("exaone-moe",)


class ExaoneMoe(Decoder):
    """Full-attention layers have no RoPE."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        local = local_layers(keys, config.n_layer, exaone4.PERIOD)
        config = replace(config, n_layer=config.n_layer - layers_left_out(keys, weights, config.n_layer))
        experts = ExpertConfig.read(
            keys, config.n_layer, gating="sigmoid", normalize=False, grouped=True, reads=ROUTING
        )
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        n_shared = keys.integer("expert_shared_count", 1, high=64)
        shared_dim = keys.integer("expert_shared_feed_forward_length", n_shared * experts.ffn_dim, high=MAX_DIM)
        window = keys.integer("attention.sliding_window", low=1)
        self.windows = [window if local[i] else 0 for i in range(config.n_layer)]
        mlp = dense_then_experts(config, experts, shared_dim, n_dense_layers)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        kinds = [qwen3.Attention if one else exaone4.WithoutPositions for one in local]
        blocks = [
            Block(config, block, kinds[i](config, block, i, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = ExaoneMoe

# --- checkpoint ---


def _n_dense(config: Fields) -> int:
    """Return how many layers are dense; a list of all layers takes precedence over a number."""
    return n_dense(config, config.integer("first_k_dense_replace", 1))


_MLP = "model.layers.{i}.mlp"
HF = {
    "ExaoneMoeForCausalLM": Checkpoint(
        "exaone-moe",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.sliding_window": computed("u32", exaone4.window_of),
            "attention.sliding_window_pattern": computed("bool[]", exaone4.pattern_of),
            "expert_count": u32("num_experts", "num_local_experts", default=64),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1024),
            "expert_shared_count": u32("num_shared_experts", default=1),
            "expert_shared_feed_forward_length": computed(
                "u32",
                lambda config: config.integer("moe_intermediate_size", 1024) * config.integer("num_shared_experts", 1),
            ),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
            "leading_dense_block_count": computed("u32", _n_dense),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **qwen3.QK_NORMS,
            "blk.{i}.exp_probs_b.bias": f"{_MLP}.e_score_correction_bias",
            **SHARED_EXPERT_TENSORS,
        },
        fixed={"hidden_act": SILU, "scoring_func": ("sigmoid", None)},
        checks=(has_windows,),
        ignored=("mtp.*",),
        unused=("num_nextn_predict_layers",),
    )
}
