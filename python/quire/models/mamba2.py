"""Mamba 2 (Dao and Gu 2024): a state for each head, decayed by one number, and a short convolution before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoint import SILU, Change, Checkpoint, Fields, Source, f32, made, only_with, squeezed, taken, u32
from ..errors import LoadError
from ..nn import CacheSpec, Keys, RopeSpec, Step, Tensor, Weights, rope, select_rows
from .base import MAX_DIM, MAX_HEADS, Config, DenseConfig, head

if TYPE_CHECKING:
    from ..checkpoint import Array

ARCHES = ("mamba2",)


@dataclass(frozen=True)
class StateSpace:
    """Sizes of the layers with a state."""

    kernel: int
    inner: int
    n_state: int
    n_head: int
    n_group: int  # heads of a group read and write by the same vectors

    @classmethod
    def read(cls, m: Keys) -> StateSpace:
        sizes = cls(
            kernel=m.integer("ssm.conv_kernel", low=2, high=32),
            inner=m.integer("ssm.inner_size", low=1, high=MAX_DIM),
            n_state=m.integer("ssm.state_size", low=1, high=256),
            n_head=m.integer("ssm.time_step_rank", low=1, high=MAX_HEADS),
            n_group=m.integer("ssm.group_count", low=1, high=MAX_HEADS),
        )
        if sizes.inner % sizes.n_head or sizes.n_head % sizes.n_group:
            raise LoadError(f"[{m.arch}] ssm.inner_size, ssm.time_step_rank and ssm.group_count must divide each other")
        return sizes

    @property
    def n_channels(self) -> int:
        """Of the convolution: x, b and c."""
        return self.inner + 2 * self.n_group * self.n_state

    def cache(self, *, n_kv_head: int = 0, head_dim: int = 0) -> CacheSpec:
        """``n_kv_head``, ``head_dim``: of attention in the same layer."""
        states = [("conv", (self.kernel - 1) * self.n_channels), ("ssm", self.inner * self.n_state)]
        return CacheSpec(n_kv_head=n_kv_head, head_dim=head_dim, states=states)


class Mamba2Mixer:
    """``eps``: of the norm by group, which some models leave out."""

    def __init__(self, w: Weights, dim: int, layer: int, s: StateSpace, eps: float) -> None:
        self.layer, self.sizes, self.eps = layer, s, eps
        self.z, self.xbc, self.dt = w.linears("ssm_in", dim, [s.inner, s.n_channels, s.n_head], bias=None)
        self.conv = w.tensor("ssm_conv1d.weight", (s.n_channels, s.kernel), vector=True)
        bias, norm = "ssm_conv1d.bias", "ssm_norm.weight"
        self.conv_bias = w.tensor(bias, (s.n_channels,), vector=True) if w.has(bias) else None
        self.dt_bias = w.tensor("ssm_dt.bias", (s.n_head,), vector=True)
        self.a = w.tensor("ssm_a", (s.n_head,), vector=True, stored=(s.n_head, 1))
        self.d = w.tensor("ssm_d", (s.n_head,), vector=True, stored=(s.n_head, 1))
        groups = (s.n_group, s.inner // s.n_group)
        self.norm = w.tensor(norm, (s.inner,), vector=True, stored=groups) if w.has(norm) else None
        self.out = w.linear("ssm_out", s.inner, dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        s = self.sizes
        xbc = graph.conv_state(self.xbc(x), self.conv, self.conv_bias, layer=self.layer, state=0, silu=True)
        end = s.inner + s.n_group * s.n_state
        b = graph.slice(xbc, 0, s.inner, end).heads(s.n_group)
        c = graph.slice(xbc, 0, end, s.n_channels).heads(s.n_group)
        dt = graph.softplus(graph.add_weight(self.dt(x), self.dt_bias))
        heads = graph.slice(xbc, 0, 0, s.inner).heads(s.n_head)
        y = graph.state_space_dual(heads, dt, b, c, self.a, self.d, layer=self.layer, state=1)
        y = graph.glu(self.z(x), y.merge_heads(), "silu")
        if self.norm is not None:
            y = graph.group_norm(y, s.n_group, self.norm, self.eps)
        return self.out(y)


class Attention:
    """Of models that mix both: most are without rotation, as the states tell the order."""

    def __init__(
        self, c: DenseConfig, w: Weights, layer: int, scale: float = 0.0, *, rotation: RopeSpec | None = None
    ) -> None:
        """``scale``: of scores; 0: by the size of a head."""
        self.rotation = rotation
        self.layer, self.n_head, self.n_kv_head = layer, c.n_head, c.n_kv_head
        self.scale = scale or c.head_dim**-0.5
        self.q = w.linear("attn_q", c.dim, c.n_head * c.head_dim, bias=None)
        self.k = w.linear("attn_k", c.dim, c.n_kv_head * c.head_dim, bias=None)
        self.v = w.linear("attn_v", c.dim, c.n_kv_head * c.v_head_dim, bias=None)
        self.o = w.linear("attn_output", c.n_head * c.v_head_dim, c.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head), self.v(x).heads(self.n_kv_head)
        if self.rotation is not None:
            q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Mamba2:
    """Norm and mixer in each layer; nothing else."""

    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        self.config = c = Config.read(m, n_vocab)
        eps = m.number("attention.layer_norm_rms_epsilon")
        if not 0 < eps < 1:
            raise LoadError(f"[{m.arch}] the epsilon of norms must be between 0 and 1 but is {eps}")
        m.without_effect("attention.head_count", "feed_forward_length")  # 0 in files, as llama.cpp wants them
        self.layers = self.mixers(m, [*w.blocks(c.n_layer)], eps)
        self.norms = [b.norm("attn_norm", c.dim, eps) for b in w.blocks(c.n_layer)]
        self.embedding = w.embedding("token_embd", c.n_vocab, c.dim)
        self.norm = w.norm("output_norm", c.dim, eps)
        self.head = head(w, c, self.embedding)

    def mixers(self, m: Keys, blocks: Sequence[Weights], eps: float) -> list[Mamba2Mixer]:
        self.sizes = StateSpace.read(m)
        return [Mamba2Mixer(b, self.config.dim, i, self.sizes, eps) for i, b in enumerate(blocks)]

    def cache(self) -> list[CacheSpec]:
        return [self.sizes.cache()] * self.config.n_layer

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens)
        for i, (norm, mixer) in enumerate(zip(self.norms, self.layers, strict=True)):
            x = step.after_layer(i, x + mixer(norm(x), step))
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Mamba2


def decay(x: Array, config: Fields) -> Array:
    """From the logarithm of what is negated."""
    import numpy as np

    decays: Array = np.negative(np.exp(x))
    return decays


def decay_column(x: Array, config: Fields) -> Array:
    return decay(x, config)[:, None]


def column(x: Array, config: Fields) -> Array:
    one_wide: Array = x[:, None].copy()
    return one_wide


def by_group(field: str, default: int) -> Change:
    """The weight of a norm as files hold it; ``field`` has the number of groups."""

    def change(x: Array, config: Fields) -> Array:
        return x.reshape(config.integer(field, default, low=1), -1)

    return change


def convolution(flag: str) -> Change:
    """Without the dimension of 1; ``flag`` says whether there is a bias."""
    return only_with(flag, default=True, biases=True, change=squeezed)


def _inner(config: Fields) -> int:
    return int(config.number("expand", 2) * config.integer("hidden_size", 4096))


# Time steps are not limited; the ways in which JSON spells infinity.
UNLIMITED = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}], None)
KEYS = {
    "context_length": made("u32", lambda config: 2**20),
    "embedding_length": u32("hidden_size"),
    "block_count": u32("num_hidden_layers"),
    "feed_forward_length": made("u32", lambda config: 0),
    "attention.head_count": made("u32", lambda config: 0),
    "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-5),
    "ssm.conv_kernel": u32("conv_kernel", default=4),
    "ssm.inner_size": made("u32", _inner),
}
_LAYER = "backbone.layers.{i}"
TENSORS: dict[str, str | Source] = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "blk.{i}.attn_norm": f"{_LAYER}.norm",
    "blk.{i}.ssm_in": taken(f"{_LAYER}.mixer.in_proj", change=only_with("use_bias", default=False, biases=True)),
    "blk.{i}.ssm_conv1d": taken(f"{_LAYER}.mixer.conv1d", change=convolution("use_conv_bias")),
    "blk.{i}.ssm_out": taken(f"{_LAYER}.mixer.out_proj", change=only_with("use_bias", default=False, biases=True)),
}
UNUSED = (
    "use_bias",
    "use_conv_bias",
    "time_step_*",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "max_position_embeddings",
    "ssm_cfg",
    "d_model",
    "d_inner",
    "d_state",
    "n_layer",
    "fused_add_norm",
    "rms_norm",
    "pad_vocab_size_multiple",
)


def mixer_tensors(
    module: str, groups: str, n_group: int, *, bias: str = "mamba_proj_bias", conv_bias: str = "mamba_conv_bias"
) -> dict[str, str | Source]:
    """Those of Mamba 2's mixer below a module.

    ``groups``: the field with their number, and its default; ``bias``, ``conv_bias``: those that say what has biases.
    """
    with_bias = only_with(bias, default=False, biases=True)
    return {
        "blk.{i}.ssm_in": taken(f"{module}.in_proj", change=with_bias),
        "blk.{i}.ssm_conv1d": taken(f"{module}.conv1d", change=convolution(conv_bias)),
        "blk.{i}.ssm_dt.bias": f"{module}.dt_bias",
        "blk.{i}.ssm_a": taken(f"{module}.A_log", change=decay_column),
        "blk.{i}.ssm_d": taken(f"{module}.D", change=column),
        "blk.{i}.ssm_norm": taken(f"{module}.norm", change=by_group(groups, n_group)),
        "blk.{i}.ssm_out": taken(f"{module}.out_proj", change=with_bias),
    }


HF = {
    "Mamba2ForCausalLM": Checkpoint(
        "mamba2",
        {
            **KEYS,
            "ssm.state_size": u32("state_size", default=128),
            "ssm.time_step_rank": u32("num_heads", default=128),
            "ssm.group_count": u32("n_groups", default=8),
        },
        {**TENSORS, **mixer_tensors(f"{_LAYER}.mixer", "n_groups", 8, bias="use_bias", conv_bias="use_conv_bias")},
        fixed={"hidden_act": SILU, "time_step_limit": UNLIMITED},
        rope=None,
        unused=(*UNUSED, "head_dim", "chunk_size"),
        base="backbone.",
    )
}
