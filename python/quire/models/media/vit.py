"""Blocks of vision transformers: norm, attention in both directions, norm, MLP, each with a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...nn import MLP, RopeSpec, Step, Tensor, Weights, rope

if TYPE_CHECKING:
    from ..._native.graph import Activation

__all__ = ["Attention", "Block"]


class Attention:
    """Attention among all patches of a view."""

    def __init__(self, weights: Weights, dim: int, n_head: int, rotation: RopeSpec | None = None) -> None:
        self.n_head, self.scale, self.rotation = n_head, (dim // n_head) ** -0.5, rotation
        if weights.has("attn_qkv.weight"):
            self.q, self.k, self.v = weights.linears("attn_qkv", dim, [dim] * 3, bias=None)
        else:
            self.q, self.k, self.v = (weights.linear(f"attn_{name}", dim, dim, bias=None) for name in "qkv")
        self.o = weights.linear("attn_out", dim, dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x).heads(self.n_head) for linear in (self.q, self.k, self.v))
        if self.rotation is not None:
            q, k = (rope(heads, step.positions, self.rotation) for heads in (q, k))
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale))


class Block:
    """One layer, with LayerNorm."""

    def __init__(
        self,
        weights: Weights,
        dim: int,
        ffn_dim: int,
        n_head: int,
        *,
        eps: float,
        activation: Activation | Callable[[Tensor], Tensor],
        rotation: RopeSpec | None = None,
    ) -> None:
        self.attn_norm = weights.layer_norm("ln1", dim, eps, bias=True)
        self.attention = Attention(weights, dim, n_head, rotation)
        self.mlp_norm = weights.layer_norm("ln2", dim, eps, bias=True)
        self.mlp = MLP(weights, dim, ffn_dim, activation)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))
