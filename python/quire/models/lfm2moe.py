"""LFM2 with experts (Liquid AI 2025): LFM2's layers, experts in all but the first few."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import Checkpoint, Fields, computed, factor, u32
from ..nn import GatedMLP, Keys, MoE, MoeSpec, Weights
from .base import MAX_DIM, MAX_LAYERS, Layer
from .lfm2 import KEYS, TENSORS, Lfm2, rope_of_lfm2

ARCHES = ("lfm2moe",)
SIGMOID = 2  # the value of expert_gating_func


class Lfm2Moe(Lfm2):
    @staticmethod
    def window_of(keys: Keys) -> int:
        keys.only("attention.sliding_window", 0)
        return 0

    def mlps(self, keys: Keys, blocks: Sequence[Weights]) -> list[Layer]:
        config = self.config
        n_dense = keys.integer("leading_dense_block_count", 0, high=MAX_LAYERS)
        n_expert = keys.integer("expert_count", low=1, high=4096)
        n_used = keys.same("expert_used_count", config.n_layer, low=1, high=n_expert)
        expert_dim = keys.same("expert_feed_forward_length", config.n_layer, low=1, high=MAX_DIM)
        keys.only("expert_gating_func", SIGMOID)
        keys.only("expert_group_count", 0, 1)
        keys.without_effect("expert_group_used_count")
        spec = MoeSpec(
            n_used=n_used,
            gating="sigmoid",
            normalize=keys.flag("expert_weights_norm", True),
            scale=keys.number("expert_weights_scale", 1.0) or 1.0,  # 0: not set
        )
        return [
            GatedMLP(block, config.dim, config.ffn_dim)
            if i < n_dense
            else MoE(block, config.dim, expert_dim, n_expert, spec)
            for i, block in enumerate(blocks)
        ]


MODEL = Lfm2Moe

# --- checkpoint ---


def _unless_normalized(config: Fields) -> bool | None:
    return None if config.flag("norm_topk_prob", True) else False


_EXPERTS = "model.layers.{i}.feed_forward.experts.{e}"
HF = {
    "Lfm2MoeForCausalLM": Checkpoint(
        "lfm2moe",
        {
            **KEYS,
            "feed_forward_length": u32("intermediate_size", default=7168),
            "leading_dense_block_count": u32("num_dense_layers", default=2),
            "expert_count": u32("num_experts", default=32),
            "expert_used_count": u32("num_experts_per_tok", default=4),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1792),
            "expert_gating_func": computed("u32", lambda config: SIGMOID),
            "expert_weights_norm": computed("bool", _unless_normalized),
            "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
        },
        {
            **TENSORS,
            "blk.{i}.ffn_gate_inp": "model.layers.{i}.feed_forward.gate",
            "blk.{i}.exp_probs_b.bias": "model.layers.{i}.feed_forward.expert_bias",
            "blk.{i}.ffn_gate_exps": f"{_EXPERTS}.w1",
            "blk.{i}.ffn_up_exps": f"{_EXPERTS}.w3",
            "blk.{i}.ffn_down_exps": f"{_EXPERTS}.w2",
        },
        fixed={"tie_embedding": (True, None), "use_expert_bias": (True,)},
        rope=rope_of_lfm2,
        tied=True,
        unused=("conv_bias",),
    )
}
