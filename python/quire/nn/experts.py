"""Mixtures of experts from a file's keys, and experts that every token goes through."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .._native import graph
from .._native.graph import MoeSpec
from .._native.graph import TraceTensor as Tensor
from ..errors import LoadError, UnsupportedError
from .keys import Keys
from .mlp import MoE
from .weights import Weights

if TYPE_CHECKING:
    from .._native.graph import Activation

Gating = Literal["softmax", "sigmoid", "softmax_of_chosen"]
GATINGS: dict[int, Gating] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}  # numbers of expert_gating_func
ROUTING = ("expert_gating_func", "expert_weights_norm", "expert_weights_scale")  # keys of how tokens are routed
MAX_EXPERTS, MAX_FFN_DIM = 4096, 1 << 20


@dataclass(frozen=True)
class ExpertConfig:
    """The keys ``expert_*`` of a model whose layers route alike."""

    n: int
    n_used: int
    ffn_dim: int  # of one expert
    gating: Gating
    normalize: bool  # the weights of the chosen are divided by their sum
    scale: float
    n_group: int
    n_group_used: int

    @classmethod
    def read(
        cls,
        keys: Keys,
        n_layer: int,
        *,
        gating: Gating = "softmax",
        normalize: bool = True,
        ffn_dim: int = 0,
        grouped: bool = False,
        reads: Collection[str] = (),
    ) -> ExpertConfig:
        """``gating``, ``normalize``: what files mean that do not say so; ``ffn_dim`` 0: they must.

        ``grouped``: whether the model chooses groups of experts first.  ``reads``: those of ROUTING that the model has
        a choice of; the others are refused where they say something else.
        """
        n = keys.integer("expert_count", low=1, high=MAX_EXPERTS)
        number = next(i for i, name in GATINGS.items() if name == gating)
        fixed: dict[str, tuple[bool | float, ...]] = {
            "expert_gating_func": (number,),
            "expert_weights_norm": (normalize,),
            "expert_weights_scale": (0.0, 1.0),
        }
        for key in ROUTING:
            if key not in reads:
                keys.only(key, *fixed[key])
        number = keys.integer("expert_gating_func", number)
        if number not in GATINGS:
            raise UnsupportedError(
                f"[{keys.arch}] key '{keys.full('expert_gating_func')}' must be 1 to 3 but is {number}"
            )
        sizes = {"default": ffn_dim} if ffn_dim else {}
        if not grouped:
            keys.only("expert_group_count", 0, 1)
            keys.without_effect("expert_group_used_count")
        config = cls(
            n=n,
            n_used=keys.same("expert_used_count", n_layer, low=1, high=n),
            ffn_dim=keys.same("expert_feed_forward_length", n_layer, low=1, high=MAX_FFN_DIM, **sizes),
            gating=GATINGS[number],
            normalize=keys.flag("expert_weights_norm", normalize),
            scale=keys.number("expert_weights_scale", 0.0) or 1.0,  # 0 says nothing
            n_group=(keys.integer("expert_group_count", 0, high=n) or 1) if grouped else 1,
            n_group_used=(keys.integer("expert_group_used_count", 0, high=n) or 1) if grouped else 1,
        )
        if n % config.n_group or config.n_group_used > config.n_group:
            groups = f"{config.n_group_used} of {config.n_group} groups of {n}"
            raise LoadError(f"[{keys.arch}] expert_group_count must divide expert_count and be used but is {groups}")
        return config

    def spec(self, activation: Activation = "silu") -> MoeSpec:
        """Of gated units.

        Groups count as their two best experts where scores are corrected sigmoids (DeepSeek-V3), and as their best one
        where scores are a softmax (DeepSeek-V2).
        """
        return MoeSpec(
            n_used=self.n_used,
            activation=activation,
            gating=self.gating,
            normalize=self.normalize,
            scale=self.scale,
            n_group=self.n_group,
            n_group_used=self.n_group_used,
            group_score="two_largest" if self.gating == "sigmoid" else "largest",
        )


class SharedExpert:
    """A gated unit that every token goes through, beside those it is routed to.

    ``is_weighed``: times the sigmoid of a score.
    """

    def __init__(
        self, weights: Weights, dim: int, ffn_dim: int, activation: Activation = "silu", *, is_weighed: bool = False
    ) -> None:
        self.gate = weights.linear("ffn_gate_shexp", dim, ffn_dim)
        self.up = weights.linear("ffn_up_shexp", dim, ffn_dim)
        self.down = weights.linear("ffn_down_shexp", ffn_dim, dim)
        self.weight = weights.row("ffn_gate_inp_shexp.weight", dim) if is_weighed else None
        self.activation: Activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        y = self.down(graph.glu(self.gate(x), self.up(x), self.activation))
        if self.weight is None:
            return y
        return graph.multiply_broadcast(y, graph.sigmoid(graph.linear(x, self.weight)))


def experts_of(weights: Weights, dim: int, experts: ExpertConfig, shared_dim: int) -> Callable[[Tensor], Tensor]:
    """A mixture of gated experts, and beside it a shared one of ``shared_dim`` units, where that is not 0."""
    routed = MoE(weights, dim, experts.ffn_dim, experts.n, experts.spec())
    return Together(routed, SharedExpert(weights, dim, shared_dim)) if shared_dim else routed


class Together:
    """The sum of what several layers make of the same rows."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        first, *others = (layer(x) for layer in self.layers)
        for other in others:
            first = first + other
        return first
