"""Mamba (Gu and Dao 2023): a state for each channel, with its own decays, and a short convolution before it.

Falcon Mamba (Zuo et al. 2024) also normalizes time steps, b and c, without weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._native import graph
from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, f32, tensor, u32
from ..errors import LoadError
from ..nn import CacheSpec, Keys, Step, Tensor, Weights, unit_norm
from .base import MAX_DIM, Layer
from .mamba2 import KEYS, TENSORS, UNUSED, Mamba2, decay

ARCHES = ("mamba",)


@dataclass(frozen=True)
class Selection:
    """Sizes of the recurrent layers."""

    kernel: int
    inner: int
    n_state: int
    dt_rank: int  # rank of the projection to time steps

    @classmethod
    def read(cls, keys: Keys) -> Selection:
        return cls(
            kernel=keys.integer("ssm.conv_kernel", low=2, high=32),
            inner=keys.integer("ssm.inner_size", low=1, high=MAX_DIM),
            n_state=keys.integer("ssm.state_size", low=1, high=256),
            dt_rank=keys.integer("ssm.time_step_rank", low=1, high=MAX_DIM),
        )

    def cache(self) -> CacheSpec:
        return CacheSpec(states=[("conv", (self.kernel - 1) * self.inner), ("ssm", self.inner * self.n_state)])


class MambaMixer:
    """Mamba's mixer; time steps, b and c are normalized if the file has norms for them (Jamba) or by ``unit_eps``."""

    def __init__(
        self, weights: Weights, dim: int, layer: int, selection: Selection, eps: float, *, unit_eps: float = 0.0
    ) -> None:
        self.layer, self.sizes = layer, selection
        self.x, self.z = weights.linears("ssm_in", dim, [selection.inner, selection.inner], bias=None)
        self.conv = weights.tensor("ssm_conv1d.weight", (selection.inner, selection.kernel), vector=True)
        bias = "ssm_conv1d.bias"
        self.conv_bias = weights.tensor(bias, (selection.inner,), vector=True) if weights.has(bias) else None
        self.select = weights.linears(
            "ssm_x", selection.inner, [selection.dt_rank, selection.n_state, selection.n_state]
        )
        names = ("ssm_dt_norm", "ssm_b_norm", "ssm_c_norm")
        sizes = (selection.dt_rank, selection.n_state, selection.n_state)
        self.norms: list[Layer] = [
            weights.norm(name, n, eps) for name, n in zip(names, sizes, strict=True) if weights.has(f"{name}.weight")
        ] or [lambda x: unit_norm(x, unit_eps)] * (3 if unit_eps else 0)
        self.dt = weights.linear("ssm_dt", selection.dt_rank, selection.inner, bias=True)
        self.a = weights.tensor("ssm_a", (selection.inner, selection.n_state), vector=True)
        self.d = weights.tensor("ssm_d", (selection.inner,), vector=True)
        self.out = weights.linear("ssm_out", selection.inner, dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = graph.conv_state(self.x(x), self.conv, self.conv_bias, layer=self.layer, state=0, silu=True)
        dt, b, c = (linear(y) for linear in self.select)
        if self.norms:
            dt, b, c = (norm(value) for norm, value in zip(self.norms, (dt, b, c), strict=True))
        dt = graph.softplus(self.dt(dt))
        y = graph.selective_scan(y, dt, b, c, self.a, self.d, layer=self.layer, state=1)
        return self.out(graph.glu(self.z(x), y, "silu"))


class Mamba(Mamba2):
    """Mamba 2's wiring with Mamba's mixer."""

    def mixers(self, keys: Keys, blocks: Sequence[Weights], eps: float) -> list[MambaMixer]:  # type: ignore[override]
        self.selection = selection = Selection.read(keys)
        unit_eps = keys.number(
            "ssm.dt_b_c_rms_epsilon", eps
        )  # Quire's own key: llama.cpp uses the other norms' epsilon
        if not 0 < unit_eps < 1:
            raise LoadError(f"[{keys.arch}] norm epsilon {unit_eps} is out of range: expected between 0 and 1")
        unit_eps = unit_eps if keys.flag("ssm.dt_b_c_rms", False) else 0.0
        return [
            MambaMixer(block, self.config.dim, i, selection, eps, unit_eps=unit_eps) for i, block in enumerate(blocks)
        ]

    def cache(self) -> list[CacheSpec]:
        return [self.selection.cache()] * self.config.n_layer


MODEL = Mamba

# --- checkpoint ---


def _dt_rank(config: Fields) -> int:
    if config.value("time_step_rank") in (None, "auto"):
        return -(-config.integer("hidden_size") // 16)
    return config.integer("time_step_rank")


_MIXER = "backbone.layers.{i}.mixer"
_KEYS = {**KEYS, "ssm.state_size": u32("state_size", default=16), "ssm.time_step_rank": computed("u32", _dt_rank)}
_TENSORS = {
    **TENSORS,
    "blk.{i}.ssm_x": f"{_MIXER}.x_proj",
    "blk.{i}.ssm_dt": f"{_MIXER}.dt_proj",
    "blk.{i}.ssm_a": tensor(f"{_MIXER}.A_log", change=decay),
    "blk.{i}.ssm_d": f"{_MIXER}.D",
}
_UNUSED = (*UNUSED, "intermediate_size", "use_mambapy", "use_associative_scan", "use_falcon_mambapy")
HF = {
    "MambaForCausalLM": Checkpoint(
        "mamba", _KEYS, _TENSORS, fixed={"hidden_act": SILU}, rope=None, tied=True, unused=_UNUSED, base="backbone."
    ),
    "FalconMambaForCausalLM": Checkpoint(
        "mamba",
        {
            **_KEYS,
            "ssm.dt_b_c_rms": computed("bool", lambda config: True),
            "ssm.dt_b_c_rms_epsilon": f32("mixer_rms_eps", default=1e-6),
        },
        _TENSORS,
        fixed={"hidden_act": SILU},
        rope=None,
        tied=True,
        unused=_UNUSED,
        base="backbone.",
    ),
}
