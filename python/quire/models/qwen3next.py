"""Qwen3-Next (Qwen team 2025): Qwen3.5 with experts, with one projection for the gates of the delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoints.mapping import (
    SILU,
    Change,
    Checkpoint,
    Fields,
    Source,
    computed,
    only_experts,
    rope_keys,
    squeezed,
    tensor,
    u32,
)
from ..nn import Tensor, Weights
from .base import DenseConfig
from .qwen35 import ATTENTION_TENSORS, PREDICTING, GatedDelta, decay
from .qwen35moe import MOE_KEYS, MOE_TENSORS, Qwen35Moe

if TYPE_CHECKING:
    from ..checkpoints.mapping import Array

ARCHES = ("qwen3next",)


class Delta(GatedDelta):
    """The gated delta rule with value heads grouped by key."""

    tiled = False

    def gates(self, config: DenseConfig, weights: Weights) -> None:
        self.both = weights.linear("ssm_ba", config.dim, 2 * self.delta.n_head)

    def beta_alpha(self, x: Tensor) -> tuple[Tensor, Tensor]:
        delta, n = self.delta, self.delta.n_head // self.delta.n_key_head
        by_key = self.both(x).heads(delta.n_key_head)
        return graph.slice(by_key, 0, 0, n).merge_heads(), graph.slice(by_key, 0, n, 2 * n).merge_heads()


class Qwen3Next(Qwen35Moe):
    delta_rule = Delta


MODEL = Qwen3Next

# --- checkpoint ---


def _unless_normalized(config: Fields) -> bool | None:
    return None if config.flag("norm_topk_prob", True) else False


def _of_qkvz(*parts: int) -> Change:
    """Take some of q, k, v and z, which checkpoints store together for each key head."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        n_key_head, n_head = config.integer("linear_num_key_heads", 16), config.integer("linear_num_value_heads", 32)
        n_key = config.integer("linear_key_head_dim", 128)
        n_values = n_head // n_key_head * config.integer("linear_value_head_dim", 128)
        by_key = x.reshape(n_key_head, -1, x.shape[-1])
        split = np.split(by_key, np.cumsum([n_key, n_key, n_values]), axis=1)
        return np.concatenate([split[i].reshape(-1, x.shape[-1]) for i in parts])

    return change


_DELTA = "model.layers.{i}.linear_attn"
_TENSORS: dict[str, str | Source] = {
    **ATTENTION_TENSORS,
    **MOE_TENSORS,
    "blk.{i}.attn_qkv": tensor(f"{_DELTA}.in_proj_qkvz", change=_of_qkvz(0, 1, 2)),
    "blk.{i}.attn_gate": tensor(f"{_DELTA}.in_proj_qkvz", change=_of_qkvz(3)),
    "blk.{i}.ssm_ba": f"{_DELTA}.in_proj_ba",
    "blk.{i}.ssm_conv1d": tensor(f"{_DELTA}.conv1d", change=squeezed),
    "blk.{i}.ssm_dt.bias": f"{_DELTA}.dt_bias",
    "blk.{i}.ssm_a": tensor(f"{_DELTA}.A_log", change=decay),
    "blk.{i}.ssm_out": f"{_DELTA}.out_proj",
}
HF = {
    "Qwen3NextForCausalLM": Checkpoint(
        "qwen3next",
        {
            **MOE_KEYS,
            "expert_count": u32("num_experts", default=512),
            "expert_used_count": u32("num_experts_per_tok", default=10),
            "expert_weights_norm": computed("bool", _unless_normalized),
        },
        _TENSORS,
        fixed={"hidden_act": SILU},
        checks=(only_experts,),
        rope=rope_keys,
        unused=("attention_bias", "intermediate_size"),
        predicting=PREDICTING,
    )
}
