"""Feed-forward parts: gated units, and mixtures of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native import graph
from .._native.graph import MoeSpec
from .._native.graph import TraceTensor as Tensor
from .weights import Weights

if TYPE_CHECKING:
    from .._native.graph import Activation


class GatedMLP:
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020), with the biases that the file has."""

    def __init__(self, w: Weights, dim: int, ffn_dim: int, activation: Activation = "silu") -> None:
        self.gate = w.linear("ffn_gate", dim, ffn_dim, bias=None)
        self.up = w.linear("ffn_up", dim, ffn_dim, bias=None)
        self.down = w.linear("ffn_down", ffn_dim, dim, bias=None)
        self.activation: Activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(graph.glu(self.gate(x), self.up(x), self.activation))


class MoE:
    """Every token through its best few of ``n_expert`` gated units."""

    def __init__(self, w: Weights, dim: int, ffn_dim: int, n_expert: int, spec: MoeSpec) -> None:
        self.router = w.tensor("ffn_gate_inp.weight", (n_expert, dim))
        self.gate = w.tensor("ffn_gate_exps.weight", (n_expert, ffn_dim, dim))
        self.up = w.tensor("ffn_up_exps.weight", (n_expert, ffn_dim, dim))
        self.down = w.tensor("ffn_down_exps.weight", (n_expert, dim, ffn_dim))
        self.spec = spec

    def __call__(self, x: Tensor) -> Tensor:
        return graph.moe(x, self.router, self.gate, self.up, self.down, self.spec)
