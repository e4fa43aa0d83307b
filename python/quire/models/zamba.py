"""Zamba (Glorioso et al. 2024): Mamba with heads, and one block of attention and MLP that several layers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from .._native import graph
from ..checkpoints.mapping import Array, Checkpoint, Entry, Fields, Target, computed, f32, squeezed, tensor, u32
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, Keys, Step, Tensor, Weights
from . import zamba2
from .base import MAX_DIM, Mixer

ARCHES = ("zamba",)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the recurrent layers, whose heads have states of their own."""

    kernel: int
    inner: int
    n_state: int
    rank: int  # that of the projection to time steps
    n_head: int

    @classmethod
    def read(cls, keys: Keys) -> Sizes:
        sizes = cls(
            kernel=keys.integer("ssm.conv_kernel", low=2, high=32),
            inner=keys.integer("ssm.inner_size", low=1, high=MAX_DIM),
            n_state=keys.integer("ssm.state_size", low=1, high=256),
            rank=keys.integer("ssm.time_step_rank", low=1, high=MAX_DIM),
            n_head=keys.integer("ssm.head_count", low=1, high=64),
        )
        if sizes.inner % sizes.n_head:
            raise LoadError(f"[zamba] ssm.inner_size {sizes.inner} is not divisible by ssm.head_count {sizes.n_head}")
        return sizes

    @property
    def of_head(self) -> int:
        return self.inner // self.n_head

    def cache(self, *, n_kv_head: int = 0, head_dim: int = 0) -> CacheSpec:
        states = [("conv", (self.kernel - 1) * self.inner)]
        states += [(f"ssm{i}", self.of_head * self.n_state) for i in range(self.n_head)]
        return CacheSpec(n_kv_head=n_kv_head, head_dim=head_dim, states=states)


class StateMixer:
    def __init__(self, weights: Weights, dim: int, layer: int, sizes: Sizes) -> None:
        self.layer, self.sizes = layer, sizes
        inner, n, size, n_out = sizes.inner, sizes.n_head, sizes.of_head, sizes.rank + 2 * sizes.n_state
        self.x, self.z = weights.linears("ssm_in", dim, [inner, inner], bias=None)
        self.conv = weights.tensor("ssm_conv1d.weight", (inner, sizes.kernel), vector=True)
        bias = "ssm_conv1d.bias"
        self.conv_bias = weights.tensor(bias, (inner,), vector=True) if weights.has(bias) else None
        self.select = weights.tensor("ssm_x.weight", (n, n_out, size))
        self.dt, self.dt_bias = (
            weights.tensor("ssm_dt.weight", (n, size, sizes.rank)),
            weights.tensor("ssm_dt.bias", (n, size), vector=True),
        )
        decays, skips = weights.numbers("ssm_a", (n, size, sizes.n_state)), weights.numbers("ssm_d", (n, size))
        self.a = [weights.computed(f"ssm_a.{i}", decays[i]) for i in range(n)]
        self.d = [weights.computed(f"ssm_d.{i}", skips[i]) for i in range(n)]
        self.out = weights.linear("ssm_out", inner, dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        sizes, z = self.sizes, self.z(x)
        x = graph.conv_state(self.x(x), self.conv, self.conv_bias, layer=self.layer, state=0, silu=True)
        x = x.heads(sizes.n_head)
        selected = graph.head_linear(x, self.select)
        ends = [0, sizes.rank, sizes.rank + sizes.n_state, sizes.rank + 2 * sizes.n_state]
        dt, b, c = (graph.slice(selected, 0, *ends[i : i + 2]) for i in range(3))
        dt = graph.softplus(graph.add_weight(graph.head_linear(dt, self.dt), self.dt_bias))
        y: Tensor | None = None
        for i in range(sizes.n_head):
            u, dt_i, b_i, c_i = (graph.slice(part, 1, i, i + 1).merge_heads() for part in (x, dt, b, c))
            each = graph.selective_scan(u, dt_i, b_i, c_i, self.a[i], self.d[i], layer=self.layer, state=1 + i)
            y = each if y is None else graph.concat(y, each, 0)
        assert y is not None
        return self.out(graph.glu(z, y, "silu"))


class Zamba(zamba2.Zamba2):
    @staticmethod
    def mixers(keys: Keys, dim: int) -> tuple[Sizes, Callable[[int, Weights], Mixer]]:
        sizes = Sizes.read(keys)
        return sizes, lambda i, block: StateMixer(block, dim, i, sizes)


MODEL = Zamba

# --- checkpoint ---

_SHARED = re.compile(r"model\.layers\.(\d+)\.shared_transf\.(.*)")


def _is_hybrid(config: Fields) -> list[bool]:
    """Return the layers that use the shared block."""
    name = "layers_block_type" if config.has("layers_block_type") else "layer_types"
    if config.has(name):
        return zamba2.hybrid_layers(config)
    n, every = config.integer("num_hidden_layers"), config.integer("attn_layer_period", 6, low=1)
    offset = config.integer("attn_layer_offset", 4)
    return [i == 2 or (i > 2 and (i - 3) % every == offset) for i in range(n)]


def _n_kv_heads(config: Fields) -> list[int]:
    n = config.integer("num_key_value_heads", 16, low=1)
    return [n if is_hybrid else 0 for is_hybrid in _is_hybrid(config)]


def _rank(config: Fields) -> int:
    if config.value("mamba_dt_rank") in (None, "auto"):
        return -(-config.integer("hidden_size") // 16)
    return config.integer("mamba_dt_rank")


def _apart(x: Array, config: Fields) -> Array:
    """Put the rows of x, which alternate with those of the gate, before these."""
    import numpy as np

    ordered: Array = np.concatenate([x[::2], x[1::2]])
    return ordered


def _decays(x: Array, config: Fields) -> Array:
    import numpy as np

    decays: Array = np.negative(np.exp(x))
    return decays


def _check(config: Fields) -> None:
    for name, value in {"attention_head_dim": zamba2.head_size(config), "head_dim": zamba2.head_size(config),
                        "attention_hidden_size": 2 * config.integer("hidden_size")}.items():  # fmt: skip
        if config.has(name) and config.integer(name) != value:
            raise UnsupportedError(f"[convert] unsupported '{name}': {config.value(name)} (expected {value})")


class _Checkpoint(Checkpoint):
    """Copies of the shared block are left out."""

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        first = next((i for i, is_hybrid in enumerate(_is_hybrid(config)) if is_hybrid), None)
        own = {
            name.replace(".mamba_decoder.", "."): name
            for name in there
            if not (found := _SHARED.fullmatch(name)) or int(found[1]) == first
        }
        found_targets = super().targets(config, entries, own.keys())
        return [replace(each, sources=tuple(own[source] for source in each.sources)) for each in found_targets]


_LAYER = "model.layers.{i}"
_MIXER, _BLOCK = f"{_LAYER}.mamba", f"{_LAYER}.shared_transf"
HF = {
    "ZambaForCausalLM": _Checkpoint(
        "zamba",
        {
            "context_length": u32("max_position_embeddings", default=4096),
            "embedding_length": u32("hidden_size"),
            "block_count": u32("num_hidden_layers"),
            "feed_forward_length": u32("intermediate_size"),
            "attention.head_count": u32("num_attention_heads", low=1),
            "attention.head_count_kv": computed("u32[]", _n_kv_heads),
            "attention.key_length": computed("u32", zamba2.head_size),
            "attention.value_length": computed("u32", zamba2.head_size),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "ssm.conv_kernel": u32("mamba_d_conv", default=4),
            "ssm.inner_size": computed("u32", zamba2.inner_size),
            "ssm.state_size": u32("mamba_d_state", default=16),
            "ssm.time_step_rank": computed("u32", _rank),
            "ssm.head_count": u32("n_mamba_heads", default=2, low=1),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.final_layernorm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.ssm_in": tensor(f"{_MIXER}.in_proj", change=_apart),
            "blk.{i}.ssm_conv1d": tensor(f"{_MIXER}.conv1d", change=squeezed),
            "blk.{i}.ssm_x.weight": f"{_MIXER}.x_proj_weight",
            "blk.{i}.ssm_dt.weight": f"{_MIXER}.dt_proj_weight",
            "blk.{i}.ssm_dt.bias": f"{_MIXER}.dt_proj_bias",
            "blk.{i}.ssm_a": tensor(f"{_MIXER}.A_log", change=_decays),
            "blk.{i}.ssm_d": f"{_MIXER}.D",
            "blk.{i}.ssm_out": f"{_MIXER}.out_proj",
            "blk.{i}.shared_norm": f"{_BLOCK}.input_layernorm",
            "blk.{i}.ffn_norm": f"{_BLOCK}.pre_ff_layernorm",
            **{
                f"blk.{{i}}.attn_{ours}": f"{_BLOCK}.self_attn.{theirs}_proj"
                for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o"))
            },
            "blk.{i}.ffn_up": tensor(f"{_BLOCK}.feed_forward.gate_proj", f"{_BLOCK}.feed_forward.up_proj"),
            "blk.{i}.ffn_down": f"{_BLOCK}.feed_forward.down_proj",
            "blk.{i}.shared_output": f"{_LAYER}.linear",
        },
        # Without tied embeddings, transformers does not share the block either.
        fixed={"hidden_act": ("gelu",), "hidden_mamba_act": ("silu",), "tie_word_embeddings": (True,)},
        checks=(_check,),
        rope=None,
        tied=True,
        unused=(
            "time_step_*", "use_mamba_kernels", "use_associative_scan", "num_logits_to_keep", "attn_layer_*",
            "mamba_conv_bias", "mamba_proj_bias", "attention_head_dim",
        ),
    )
}  # fmt: skip
