"""A.X K2 (SK Telecom 2026): DeepSeek V3.2 with gates after norms and after attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._native import graph
from ..checkpoints.mapping import Fields, Key, computed, n_dense, u32
from ..nn import LatentAttention, Linear, RMSNorm, Tensor, Weights
from . import base, deepseek32
from .base import DenseConfig, Layer, Mixer

ARCHES = ("axk2",)


class Attention(LatentAttention):
    """One product of the latent queries, before and after their norm, makes queries and gates of all heads."""

    def query_product(self, weights: Weights, dim: int) -> Linear:
        n = self.sizes.n_head * (self.sizes.head_dim + self.sizes.v_dim)
        return weights.linear("attn_q_b", 2 * self.sizes.q_rank, n)

    def latent_queries(self, x: Tensor) -> Tensor:
        assert self.q_a is not None
        assert self.q_a_norm is not None
        self.latent = self.q_a(x)
        return self.q_a_norm(self.latent)

    def queries(self, latent_q: Tensor) -> Tensor:
        sizes, both = self.sizes, self.q(graph.concat(latent_q, self.latent, 0)).heads(self.sizes.n_head)
        self.gate = graph.slice(both, 0, sizes.head_dim, sizes.head_dim + sizes.v_dim)
        return graph.slice(both, 0, 0, sizes.head_dim)

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        return y.merge_heads() * graph.sigmoid(self.gate.merge_heads())


@dataclass(frozen=True)
class GatedNorm(RMSNorm):
    """A norm whose output is multiplied by the sigmoid of a small MLP of itself."""

    down: Linear
    up: Linear

    @classmethod
    def of(cls, norm: RMSNorm, weights: Weights, name: str, dim: int) -> GatedNorm:
        rank = weights.n_rows(f"{name}_down.weight")
        down, up = weights.linear(f"{name}_down", dim, rank), weights.linear(f"{name}_up", rank, dim)
        return cls(norm.weight, norm.eps, down, up)

    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(x)
        return y * graph.sigmoid(self.up(graph.activate(self.down(y), "silu")))


class Block(base.Block):
    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        super().__init__(config, weights, attention, mlp)
        self.attn_norm = GatedNorm.of(self.attn_norm, weights, "attn_norm", config.dim)
        if weights.has("ffn_norm_down.weight"):
            self.ffn_norm = GatedNorm.of(self.ffn_norm, weights, "ffn_norm", config.dim)


class AxK2(deepseek32.DeepSeek32):
    attention, block = Attention, Block


MODEL = AxK2

# --- checkpoint ---


def _n_dense(config: Fields) -> int:
    return n_dense(config, config.integer("first_k_dense_replace", 1))


def _groups(name: str) -> Key:
    return computed("u32", lambda config: 1 if config.is_null(name) else config.integer(name, 1, low=1))


_LAYER = "model.layers.{i}"
_V32 = deepseek32.HF["DeepseekV32ForCausalLM"]
HF = {
    "AXK2ForCausalLM": replace(
        _V32,
        arch="axk2",
        keys={
            **_V32.keys,
            "attention.indexer.head_count": u32("index_n_heads", default=16),
            "expert_group_count": _groups("n_group"),
            "expert_group_used_count": _groups("topk_group"),
            "leading_dense_block_count": computed("u32", _n_dense),
        },
        tensors={
            **_V32.tensors,
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm.norm",
            "blk.{i}.attn_norm_down": f"{_LAYER}.input_layernorm.W_down",
            "blk.{i}.attn_norm_up": f"{_LAYER}.input_layernorm.W_up",
            # Dense layers have a plain norm.
            "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.ffn_norm.weight": f"{_LAYER}.post_attention_layernorm.norm.weight",
            "blk.{i}.ffn_norm_down": f"{_LAYER}.post_attention_layernorm.W_down",
            "blk.{i}.ffn_norm_up": f"{_LAYER}.post_attention_layernorm.W_up",
        },
        predicting=None,
        unused=(*_V32.unused, "gated_norm_rank"),
    )
}
