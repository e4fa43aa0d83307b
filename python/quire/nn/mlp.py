"""MLPs, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .._native import graph, parallel
from .._native.graph import MoeSpec, Weight
from .._native.graph import TraceTensor as Tensor
from .weights import Weights

if TYPE_CHECKING:
    from .._native.graph import Activation


class GatedMLP:
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020), with biases if the file has them."""

    def __init__(
        self,
        weights: Weights,
        dim: int,
        ffn_dim: int,
        activation: Activation = "silu",
        *,
        names: tuple[str, str] = ("ffn_up", "ffn_down"),
    ) -> None:
        self.gate = weights.linear("ffn_gate", dim, ffn_dim, bias=None)
        self.up = weights.linear(names[0], dim, ffn_dim, bias=None)
        self.down = weights.linear(names[1], ffn_dim, dim, bias=None)
        self.activation: Activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(graph.glu(self.gate(x), self.up(x), self.activation))


class FusedGatedMLP:
    """A ``GatedMLP`` whose gate and up matrix are one tensor, gate first."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int, activation: Activation = "silu") -> None:
        self.gate, self.up = weights.linears("ffn_up", dim, [ffn_dim, ffn_dim], bias=None)
        self.down = weights.linear("ffn_down", ffn_dim, dim, bias=None)
        self.activation: Activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(graph.glu(self.gate(x), self.up(x), self.activation))


class MLP:
    """``down(activation(up(x)))``, with biases if the file has them."""

    def __init__(
        self,
        weights: Weights,
        dim: int,
        ffn_dim: int,
        activation: Activation | Callable[[Tensor], Tensor],
        *,
        names: tuple[str, str] = ("ffn_up", "ffn_down"),
    ) -> None:
        self.up = weights.linear(names[0], dim, ffn_dim, bias=None)
        self.down = weights.linear(names[1], ffn_dim, dim, bias=None)
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        y = self.up(x)
        return self.down(self.activation(y) if callable(self.activation) else graph.activate(y, self.activation))


class MoE:
    """A mixture of experts: each token goes through its best few of ``n_expert`` MLPs.

    ``gated``: experts have a gate.  ``biases``: router and experts have biases.  ``ranks``: false where the caller
    chooses experts.
    """

    def __init__(
        self,
        weights: Weights,
        dim: int,
        ffn_dim: int,
        n_expert: int,
        spec: MoeSpec,
        *,
        gated: bool = True,
        biases: bool = False,
        ranks: bool = True,
    ) -> None:
        self.router = weights.linear("ffn_gate_inp", dim, n_expert, bias=biases)
        self.group = weights.group
        here = weights.experts_here(n_expert)
        n = n_expert if here is None else here[1]
        self.gate: Weight | None
        if gated:
            self.gate, self.up = weights.gates_and_ups(n, ffn_dim, dim)
        else:
            self.gate, self.up = None, weights.tensor("ffn_up_exps.weight", (n, ffn_dim, dim))
        self.down = weights.tensor("ffn_down_exps.weight", (n, dim, ffn_dim))
        self.gate_bias = weights.tensor("ffn_gate_exps.bias", (n, ffn_dim), vector=True) if gated and biases else None
        self.up_bias = weights.tensor("ffn_up_exps.bias", (n, ffn_dim), vector=True) if biases else None
        self.down_bias = weights.tensor("ffn_down_exps.bias", (n, dim), vector=True) if biases else None
        # Added to the scores when experts are chosen (Wang et al. 2024); a few files name it without ".bias".
        bias = "exp_probs_b" if weights.has("exp_probs_b") else "exp_probs_b.bias"
        self.selection_bias = weights.tensor(bias, (n_expert,), vector=True) if ranks and weights.has(bias) else None
        self.spec = spec if here is None else parallel.share_of_experts(spec, here[0])

    def __call__(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        """``chosen [tokens, n_used]``: numbers of the experts, instead of those with the best scores."""
        y = graph.moe(
            x,
            self.router(x),
            self.gate,
            self.up,
            self.down,
            self.spec,
            selection_bias=self.selection_bias,
            gate_bias=self.gate_bias,
            up_bias=self.up_bias,
            down_bias=self.down_bias,
            chosen=chosen,
        )
        return y if self.group is None else parallel.all_reduce(y, self.group)
