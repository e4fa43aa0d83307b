"""Qwen3.5 with experts (Qwen team 2026): Qwen3.5's layers, each with routed experts and a gated shared one."""

from __future__ import annotations

from collections.abc import Callable

from .._native import graph
from ..checkpoints.mapping import EXPERT_TENSORS, SILU, Checkpoint, Source, half, squeezed, tensor, u32, with_pictures
from ..nn import Keys, Linear, MoE, MoeSpec, Tensor, Weights
from .base import MAX_DIM, DenseConfig, Layer
from .qwen35 import KEYS, PREDICTING, SECTIONS, TENSORS, Qwen35, rope_of_qwen35

ARCHES = ("qwen35moe",)


class SharedExpert:
    """A shared expert whose output is multiplied by the sigmoid of a gate."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int) -> None:
        self.gate = weights.linear("ffn_gate_shexp", dim, ffn_dim)
        self.up = weights.linear("ffn_up_shexp", dim, ffn_dim)
        self.down = weights.linear("ffn_down_shexp", ffn_dim, dim)
        self.weight = Linear(weights.tensor("ffn_gate_inp_shexp.weight", (1, dim), vector=True, stored=(dim,)))

    def __call__(self, x: Tensor) -> Tensor:
        y = self.down(graph.glu(self.gate(x), self.up(x), "silu"))
        return graph.multiply_broadcast(y, graph.sigmoid(self.weight(x)))


class Experts:
    def __init__(self, chosen: MoE, shared: SharedExpert) -> None:
        self.chosen, self.shared = chosen, shared

    def __call__(self, x: Tensor) -> Tensor:
        return self.chosen(x) + self.shared(x)


class Qwen35Moe(Qwen35):
    def mlp(self, keys: Keys, config: DenseConfig) -> Callable[[Weights], Layer]:
        n_expert = keys.integer("expert_count", low=1, high=4096)
        n_used = keys.same("expert_used_count", config.n_layer, low=1, high=n_expert)
        expert_dim = keys.same(
            "expert_feed_forward_length", config.n_layer, config.ffn_dim // n_used, low=1, high=MAX_DIM
        )
        shared_dim = keys.integer("expert_shared_feed_forward_length", config.ffn_dim, low=1, high=MAX_DIM)
        keys.only("expert_group_count", 0, 1)
        keys.without_effect("expert_group_used_count")
        spec = MoeSpec(n_used=n_used, normalize=keys.flag("expert_weights_norm", True))
        return lambda block: Experts(
            MoE(block, config.dim, expert_dim, n_expert, spec), SharedExpert(block, config.dim, shared_dim)
        )


MODEL = Qwen35Moe

# --- checkpoint ---

_MLP = "model.layers.{i}.mlp"
MOE_KEYS = {
    **{name: key for name, key in KEYS.items() if name != "feed_forward_length"},
    "expert_count": u32("num_experts", default=256),
    "expert_used_count": u32("num_experts_per_tok", default=8),
    "expert_feed_forward_length": u32("moe_intermediate_size", default=512),
    "expert_shared_feed_forward_length": u32("shared_expert_intermediate_size", default=512),
}
MOE_TENSORS: dict[str, str | Source] = {
    **EXPERT_TENSORS,
    "blk.{i}.ffn_gate_exps.weight": tensor(f"{_MLP}.experts.gate_up_proj", change=half(0)),
    "blk.{i}.ffn_up_exps.weight": tensor(f"{_MLP}.experts.gate_up_proj", change=half(1)),
    "blk.{i}.ffn_down_exps.weight": f"{_MLP}.experts.down_proj",
    "blk.{i}.ffn_gate_inp_shexp": tensor(f"{_MLP}.shared_expert_gate", change=squeezed),
    "blk.{i}.ffn_gate_shexp": f"{_MLP}.shared_expert.gate_proj",
    "blk.{i}.ffn_up_shexp": f"{_MLP}.shared_expert.up_proj",
    "blk.{i}.ffn_down_shexp": f"{_MLP}.shared_expert.down_proj",
}
_TEXT = Checkpoint(
    "qwen35moe",
    {**MOE_KEYS, **SECTIONS},
    {**TENSORS, **MOE_TENSORS},
    fixed={"hidden_act": SILU},
    rope=rope_of_qwen35,
    unused=(
        "attention_bias",
        "mtp_*",
        "mlp_only_layers",
        "mamba_ssm_dtype",
        "attn_output_gate",
        "intermediate_size",
    ),
    ignored=("model.visual.*",),
    predicting=PREDICTING,
)
HF = {"Qwen3_5MoeForCausalLM": _TEXT, "Qwen3_5MoeForConditionalGeneration": with_pictures(_TEXT)}
