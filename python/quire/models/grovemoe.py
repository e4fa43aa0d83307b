"""Grove MoE (Wu et al. 2025): Qwen3 with experts, and small experts that neighbouring experts share."""

from __future__ import annotations

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    computed,
    no_windows,
    only_experts,
    u32,
)
from ..errors import LoadError
from ..nn import ExpertConfig, Keys, MoE, Tensor, Weights, frequency_factors, rope_spec
from .base import MAX_DIM, Block, Decoder, DenseConfig
from .qwen3 import QK_NORMS, Attention

ARCHES = ("grovemoe",)


class SharingMoE(MoE):
    """A chosen expert also adds the output of its group's small expert, by the same weight and a common scale."""

    def __init__(
        self, weights: Weights, dim: int, experts: ExpertConfig, small_dim: int, *, n_sharing: int, scale: float
    ) -> None:
        super().__init__(weights, dim, experts.ffn_dim, experts.n, experts.spec())
        n_small = experts.n // n_sharing
        # Every expert has a copy: routing, weights and groups are then those of the large experts.
        self.small_gate, self.small_up = (
            weights.repeated(f"ffn_{one}_chexps.weight", (n_small, small_dim, dim), n_sharing) for one in ("gate", "up")
        )
        self.small_down = weights.repeated("ffn_down_chexps.weight", (n_small, dim, small_dim), n_sharing)
        self.scale = scale

    def __call__(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        scores = self.router(x)
        small = graph.moe(x, scores, self.small_gate, self.small_up, self.small_down, self.spec)
        return graph.moe(x, scores, self.gate, self.up, self.down, self.spec) + small * self.scale


class GroveMoe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer)
        small_dim = keys.integer("expert_chunk_feed_forward_length", low=1, high=MAX_DIM)
        n_sharing = keys.integer("experts_per_group", low=1, high=experts.n)
        if experts.n % n_sharing:
            raise LoadError(f"[grovemoe] expert_count {experts.n} is not divisible by experts_per_group {n_sharing}")
        scale = keys.number("expert_group_scale")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation),
                SharingMoE(block, config.dim, experts, small_dim, n_sharing=n_sharing, scale=scale),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = GroveMoe

# --- checkpoint ---

HF = {
    "GroveMoeForCausalLM": Checkpoint(
        "grovemoe",
        {
            **DECODER_KEYS,
            "expert_count": u32("num_experts", default=128, low=1),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=768),
            "expert_chunk_feed_forward_length": u32("head_dim", default=128),
            # The publisher's code has no fields for these.
            "experts_per_group": computed("u32", lambda config: 2),
            "expert_group_scale": computed("f32", lambda config: 0.05),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **QK_NORMS,
            **{
                f"blk.{{i}}.ffn_{one}_chexps": f"model.layers.{{i}}.mlp.chunk_experts.{{e}}.{one}_proj"
                for one in ("gate", "up", "down")
            },
        },
        fixed={"hidden_act": SILU, "norm_topk_prob": (True,)},
        checks=(no_windows, only_experts),
        unused=("attention_bias", "output_router_logits", "router_aux_loss_coef"),
        ignored=("model.layers.*.mlp.expert_bias",),
    )
}
