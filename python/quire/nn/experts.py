"""Mixtures of experts from a file's keys, and shared experts."""

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

Gating = Literal["softmax", "sigmoid", "softmax_of_chosen", "sqrt_softplus"]
Unit = Literal["gated", "clamped_swiglu", "clipped", "clamped", "tanh_capped", "ungated"]
# Values of expert_gating_func.
GATINGS: dict[int, Gating] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen", 4: "sqrt_softplus"}
ROUTING = ("expert_gating_func", "expert_weights_norm", "expert_weights_scale")
MAX_EXPERTS, MAX_FFN_DIM = 4096, 1 << 20


@dataclass(frozen=True)
class ExpertConfig:
    """The keys ``expert_*``, for models whose layers all route the same way."""

    n: int
    n_used: int
    ffn_dim: int  # the width of one expert
    gating: Gating
    normalize: bool  # divide the weights of the chosen experts by their sum
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
        """Read the keys.

        Args:
            keys: The file's keys.
            n_layer: The number of layers.
            gating: The default of ``expert_gating_func``.
            normalize: The default of ``expert_weights_norm``.
            ffn_dim: The default of ``expert_feed_forward_length``; 0: the key is required.
            grouped: The model chooses groups of experts first.
            reads: The keys of ROUTING that may differ from the defaults; for others, another value is an error.
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
            raise UnsupportedError(f"[{keys.arch}] unsupported expert_gating_func {number}: expected 1 to 4")
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
            scale=keys.number("expert_weights_scale", 0.0) or 1.0,  # 0: not set
            n_group=(keys.integer("expert_group_count", 0, high=n) or 1) if grouped else 1,
            n_group_used=(keys.integer("expert_group_used_count", 0, high=n) or 1) if grouped else 1,
        )
        if n % config.n_group or config.n_group_used > config.n_group:
            groups = f"{config.n_group_used} of {config.n_group} groups of {n} experts"
            raise LoadError(f"[{keys.arch}] invalid expert_group_count: cannot choose {groups}")
        return config

    def spec(
        self, activation: Activation = "silu", *, unit: Unit = "gated", alpha: float = 1.702, limit: float = 7.0
    ) -> MoeSpec:
        """Return the parameters of the operation; ``alpha`` and ``limit`` are those of units that have them.

        A group's score is that of its two best experts if scores are bias-corrected sigmoids (DeepSeek-V3), and that of
        its best one if they are a softmax (DeepSeek-V2).
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
            unit=unit,
            alpha=alpha,
            limit=limit,
        )


class SharedExpert:
    """A gated MLP that every token goes through, beside its routed experts.

    ``is_weighed``: multiply its output by the sigmoid of a score.
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
    """Return a mixture of gated experts, with a shared expert of width ``shared_dim`` beside it unless that is 0."""
    routed = MoE(weights, dim, experts.ffn_dim, experts.n, experts.spec())
    return Together(routed, SharedExpert(weights, dim, shared_dim)) if shared_dim else routed


class Together:
    """The sum of several layers' outputs for the same rows."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        first, *others = (layer(x) for layer in self.layers)
        for other in others:
            first = first + other
        return first
