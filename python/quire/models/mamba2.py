"""Mamba 2 (Dao and Gu 2024): a state for each head, with one decay, and a short convolution before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoints.mapping import (
    SILU,
    Change,
    Checkpoint,
    Fields,
    Source,
    computed,
    f32,
    only_with,
    squeezed,
    tensor,
    u32,
)
from ..errors import LoadError
from ..nn import CacheSpec, Keys, RopeSpec, Step, Tensor, Weights, rope, select_rows
from .base import MAX_DIM, MAX_HEADS, Config, DenseConfig, head

if TYPE_CHECKING:
    from ..checkpoints.mapping import Array

ARCHES = ("mamba2",)


@dataclass(frozen=True)
class StateSpace:
    """Sizes of the recurrent layers."""

    kernel: int
    inner: int
    n_state: int
    n_head: int
    n_group: int  # heads of a group share b and c

    @classmethod
    def read(cls, keys: Keys) -> StateSpace:
        sizes = cls(
            kernel=keys.integer("ssm.conv_kernel", low=2, high=32),
            inner=keys.integer("ssm.inner_size", low=1, high=MAX_DIM),
            n_state=keys.integer("ssm.state_size", low=1, high=256),
            n_head=keys.integer("ssm.time_step_rank", low=1, high=MAX_HEADS),
            n_group=keys.integer("ssm.group_count", low=1, high=MAX_HEADS),
        )
        if sizes.inner % sizes.n_head or sizes.n_head % sizes.n_group:
            raise LoadError(
                f"[{keys.arch}] ssm.inner_size {sizes.inner}, ssm.time_step_rank {sizes.n_head} and ssm.group_count "
                f"{sizes.n_group} do not divide each other"
            )
        return sizes

    @property
    def n_channels(self) -> int:
        """The channels of the convolution: x, b and c."""
        return self.inner + 2 * self.n_group * self.n_state

    def cache(self, *, n_kv_head: int = 0, head_dim: int = 0) -> CacheSpec:
        """Return what a layer keeps; ``n_kv_head`` and ``head_dim`` belong to attention in the same layer."""
        states = [("conv", (self.kernel - 1) * self.n_channels), ("ssm", self.inner * self.n_state)]
        return CacheSpec(n_kv_head=n_kv_head, head_dim=head_dim, states=states)


class Mamba2Mixer:
    """Mamba 2's mixer; ``eps`` is that of the group norm, which some models lack."""

    def __init__(self, weights: Weights, dim: int, layer: int, sizes: StateSpace, eps: float) -> None:
        self.layer, self.sizes, self.eps = layer, sizes, eps
        self.z, self.xbc, self.dt = weights.linears(
            "ssm_in", dim, [sizes.inner, sizes.n_channels, sizes.n_head], bias=None
        )
        self.conv = weights.tensor("ssm_conv1d.weight", (sizes.n_channels, sizes.kernel), vector=True)
        bias, norm = "ssm_conv1d.bias", "ssm_norm.weight"
        self.conv_bias = weights.tensor(bias, (sizes.n_channels,), vector=True) if weights.has(bias) else None
        self.dt_bias = weights.tensor("ssm_dt.bias", (sizes.n_head,), vector=True)
        self.a = weights.tensor("ssm_a", (sizes.n_head,), vector=True, stored=(sizes.n_head, 1))
        self.d = weights.tensor("ssm_d", (sizes.n_head,), vector=True, stored=(sizes.n_head, 1))
        groups = (sizes.n_group, sizes.inner // sizes.n_group)
        self.norm = weights.tensor(norm, (sizes.inner,), vector=True, stored=groups) if weights.has(norm) else None
        self.out = weights.linear("ssm_out", sizes.inner, dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        sizes = self.sizes
        xbc = graph.conv_state(self.xbc(x), self.conv, self.conv_bias, layer=self.layer, state=0, silu=True)
        end = sizes.inner + sizes.n_group * sizes.n_state
        b = graph.slice(xbc, 0, sizes.inner, end).heads(sizes.n_group)
        c = graph.slice(xbc, 0, end, sizes.n_channels).heads(sizes.n_group)
        dt = graph.softplus(graph.add_weight(self.dt(x), self.dt_bias))
        heads = graph.slice(xbc, 0, 0, sizes.inner).heads(sizes.n_head)
        y = graph.state_space_dual(heads, dt, b, c, self.a, self.d, layer=self.layer, state=1)
        y = graph.glu(self.z(x), y.merge_heads(), "silu")
        if self.norm is not None:
            y = graph.group_norm(y, sizes.n_group, self.norm, self.eps)
        return self.out(y)


class Attention:
    """Attention in hybrid models: most have no RoPE, because the states carry the order."""

    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, scale: float = 0.0, *, rotation: RopeSpec | None = None
    ) -> None:
        """Declare the weights; ``scale`` is that of scores, 0: ``head_dim ** -0.5``."""
        self.rotation = rotation
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale = scale or config.head_dim**-0.5
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head), self.v(x).heads(self.n_kv_head)
        if self.rotation is not None:
            q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Mamba2:
    """A norm and a mixer in each layer, without MLPs."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = Config.read(keys, n_vocab)
        eps = keys.number("attention.layer_norm_rms_epsilon")
        if not 0 < eps < 1:
            raise LoadError(f"[{keys.arch}] norm epsilon {eps} is out of range: expected between 0 and 1")
        keys.without_effect("attention.head_count", "feed_forward_length")  # llama.cpp requires them, as 0
        self.layers = self.mixers(keys, [*weights.blocks(config.n_layer)], eps)
        self.norms = [block.norm("attn_norm", config.dim, eps) for block in weights.blocks(config.n_layer)]
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.norm = weights.norm("output_norm", config.dim, eps)
        self.head = head(weights, config, self.embedding)

    def mixers(self, keys: Keys, blocks: Sequence[Weights], eps: float) -> list[Mamba2Mixer]:
        self.sizes = StateSpace.read(keys)
        return [Mamba2Mixer(block, self.config.dim, i, self.sizes, eps) for i, block in enumerate(blocks)]

    def cache(self) -> list[CacheSpec]:
        return [self.sizes.cache()] * self.config.n_layer

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens)
        for i, (norm, mixer) in enumerate(zip(self.norms, self.layers, strict=True)):
            x = step.after_layer(i, x + mixer(norm(x), step))
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Mamba2

# --- checkpoint ---


def decay(x: Array, config: Fields) -> Array:
    """Return ``-exp(x)``: checkpoints store the logarithm."""
    import numpy as np

    decays: Array = np.negative(np.exp(x))
    return decays


def decay_column(x: Array, config: Fields) -> Array:
    return decay(x, config)[:, None]


def column(x: Array, config: Fields) -> Array:
    one_wide: Array = x[:, None].copy()
    return one_wide


def by_group(field: str, default: int) -> Change:
    """Split a norm's weight into groups, as files store it; ``field`` holds their number."""

    def change(x: Array, config: Fields) -> Array:
        return x.reshape(config.integer(field, default, low=1), -1)

    return change


def convolution(flag: str) -> Change:
    """Remove the dimension of 1; ``flag`` says whether there is a bias."""
    return only_with(flag, default=True, biases=True, change=squeezed)


def _inner(config: Fields) -> int:
    return int(config.number("expand", 2) * config.integer("hidden_size", 4096))


# Time steps are not limited; JSON has several spellings of infinity.
UNLIMITED = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}], None)
KEYS = {
    "context_length": computed("u32", lambda config: 2**20),
    "embedding_length": u32("hidden_size"),
    "block_count": u32("num_hidden_layers"),
    "feed_forward_length": computed("u32", lambda config: 0),
    "attention.head_count": computed("u32", lambda config: 0),
    "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-5),
    "ssm.conv_kernel": u32("conv_kernel", default=4),
    "ssm.inner_size": computed("u32", _inner),
}
_LAYER = "backbone.layers.{i}"
TENSORS: dict[str, str | Source] = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "blk.{i}.attn_norm": f"{_LAYER}.norm",
    "blk.{i}.ssm_in": tensor(f"{_LAYER}.mixer.in_proj", change=only_with("use_bias", default=False, biases=True)),
    "blk.{i}.ssm_conv1d": tensor(f"{_LAYER}.mixer.conv1d", change=convolution("use_conv_bias")),
    "blk.{i}.ssm_out": tensor(f"{_LAYER}.mixer.out_proj", change=only_with("use_bias", default=False, biases=True)),
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
    """Return the tensors of Mamba 2's mixer in ``module``.

    ``groups`` is the field with the number of groups, ``n_group`` its default; ``bias`` and ``conv_bias`` are the
    fields that say which tensors have biases.
    """
    with_bias = only_with(bias, default=False, biases=True)
    return {
        "blk.{i}.ssm_in": tensor(f"{module}.in_proj", change=with_bias),
        "blk.{i}.ssm_conv1d": tensor(f"{module}.conv1d", change=convolution(conv_bias)),
        "blk.{i}.ssm_dt.bias": f"{module}.dt_bias",
        "blk.{i}.ssm_a": tensor(f"{module}.A_log", change=decay_column),
        "blk.{i}.ssm_d": tensor(f"{module}.D", change=column),
        "blk.{i}.ssm_norm": tensor(f"{module}.norm", change=by_group(groups, n_group)),
        "blk.{i}.ssm_out": tensor(f"{module}.out_proj", change=with_bias),
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
