"""Zamba 2 (Glorioso et al. 2024): Mamba 2, with a few blocks of attention and MLP that several layers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from .._native import graph
from ..checkpoints.mapping import Checkpoint, Entry, Fields, Target, computed, f32, only_with, squeezed, tensor, u32
from ..checkpoints.mapping.rope import rope_keys
from ..errors import UnsupportedError
from ..nn import (
    CacheSpec,
    Keys,
    Linear,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
    select_rows,
)
from ..nn.layers import LowRank
from .base import MAX_DIM, MAX_HEADS, Decoder, DenseConfig, Mixer, by_layer
from .mamba2 import Mamba2Mixer, StateSpace, mixer_tensors

ARCHES = ("zamba2",)


def adapted(weights: Weights, linear: Linear, name: str, rank: int) -> Linear:
    """Return the shared product with this layer's own low-rank product."""
    n_out, n_in = linear.weight.shape
    a, b = weights.tensor(f"{name}_a.weight", (rank, n_in)), weights.tensor(f"{name}_b.weight", (n_out, rank))
    return replace(linear, added=(LowRank(a, b, 1.0),))


class SharedBlock:
    """Weights of attention and MLP that several layers use; attention reads the hidden state and the embedding."""

    def __init__(self, config: DenseConfig, weights: Weights) -> None:
        n, head_dim = config.dim, config.head_dim
        self.norm, self.ffn_norm = (
            weights.norm("shared_norm", 2 * n, config.eps),
            weights.norm("ffn_norm", n, config.eps),
        )
        self.q = weights.linear("attn_q", 2 * n, config.n_head * head_dim)
        self.k = weights.linear("attn_k", 2 * n, config.n_kv_head * head_dim)
        self.v = weights.linear("attn_v", 2 * n, config.n_kv_head * head_dim)
        self.o = weights.linear("attn_output", config.n_head * head_dim, n)
        self.up = weights.linear("ffn_up", n, 2 * config.ffn_dim, bias=None)  # gate and up
        self.down = weights.linear("ffn_down", config.ffn_dim, n, bias=None)


class SharedUse:
    """A shared block with the adapters, cache and output matrix of one layer."""

    def __init__(
        self,
        config: DenseConfig,
        weights: Weights,
        layer: int,
        block: SharedBlock,
        *,
        rotation: RopeSpec | None,
        rank: int,
    ) -> None:
        self.config, self.layer, self.block, self.rotation = config, layer, block, rotation
        has_adapters = weights.has("attn_q_adapter_a.weight")
        self.q, self.k, self.v = (
            adapted(weights, linear, f"attn_{name}_adapter", rank) if has_adapters else linear
            for name, linear in (("q", block.q), ("k", block.k), ("v", block.v))
        )
        up = adapted(weights, block.up, "ffn_up_adapter", rank) if rank else block.up
        self.gate, self.up = up.part(0, config.ffn_dim), up.part(config.ffn_dim, 2 * config.ffn_dim)
        self.out = weights.linear("shared_output", config.dim, config.dim)

    def __call__(self, x: Tensor, first: Tensor, step: Step) -> Tensor:
        config, block = self.config, self.block
        both = block.norm(graph.concat(x, first, 0))
        q, k = self.q(both).heads(config.n_head), self.k(both).heads(config.n_kv_head)
        if self.rotation is not None:
            q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        v = self.v(both).heads(config.n_kv_head)
        y = block.ffn_norm(block.o(step.attend(self.layer, q, k, v, scale=(config.head_dim / 2) ** -0.5)))
        return self.out(block.down(graph.glu(self.gate(y), self.up(y), "gelu")))


class Sizes(Protocol):
    """Sizes of the recurrent layers."""

    def cache(self, *, n_kv_head: int = 0, head_dim: int = 0) -> CacheSpec:
        """Return what a layer keeps."""


class Layer:
    def __init__(self, config: DenseConfig, weights: Weights, mixer: Mixer, shared: SharedUse | None) -> None:
        self.norm, self.mixer, self.shared = weights.norm("attn_norm", config.dim, config.eps), mixer, shared

    def __call__(self, x: Tensor, step: Step, *, first: Tensor) -> Tensor:
        mixed = x + self.shared(x, first, step) if self.shared else x
        return x + self.mixer(self.norm(mixed), step)


class Zamba2(Decoder):
    """Layers that use a shared block have heads of k and v; shared blocks are stored in the first layers that do."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.attends, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        config = DenseConfig.read(keys, n_vocab, n_kv_head=n_kv_head)
        self.sizes, make_mixer = self.mixers(keys, config.dim)
        n_block = keys.integer("shared_block_count", 1, low=1, high=config.n_layer)
        rank = keys.integer("shared_adapter_rank", 0, high=MAX_DIM)
        rotation = None
        if keys.has("rope.freq_base"):
            factors = frequency_factors(weights, config.n_rot)
            rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=factors)
        shared: list[SharedBlock] = []
        self.layers = []
        for i, block in enumerate(weights.blocks(config.n_layer)):
            used, n_before = None, sum(self.attends[:i])
            if self.attends[i]:
                if len(shared) < n_block:
                    shared.append(SharedBlock(config, block))
                used = SharedUse(config, block, i, shared[n_before % n_block], rotation=rotation, rank=rank)
            self.layers.append(Layer(config, block, make_mixer(i, block), used))
        super().__init__(config, weights, [])

    @staticmethod
    def mixers(keys: Keys, dim: int) -> tuple[Sizes, Callable[[int, Weights], Mixer]]:
        """Return the sizes of the recurrent layers, and a function that makes that of layer i."""
        sizes = StateSpace.read(keys)
        return sizes, lambda i, block: Mamba2Mixer(block, dim, i, sizes, 1e-5)

    def cache(self) -> list[CacheSpec]:
        kept = self.sizes.cache(n_kv_head=self.config.n_kv_head, head_dim=self.config.head_dim)
        return [kept if attends else self.sizes.cache() for attends in self.attends]

    def __call__(self, step: Step) -> Tensor:
        first = self.embedding(step.tokens)
        x = step.run_layers([partial(layer, first=first) for layer in self.layers], first)
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Zamba2

# --- checkpoint ---

_SHARED = re.compile(r"model\.layers\.(\d+)\.shared_transformer\.(.*)")
_ADAPTER = re.compile(r"(?:self_attn\.linear_([qkv])|feed_forward\.(gate_up)_proj)_adapter_list\.(\d+)\.(.*)")


def hybrid_layers(config: Fields) -> list[bool]:
    """Return the layers that use a shared block."""
    kinds = config.items("layers_block_type" if config.has("layers_block_type") else "layer_types")
    known = {"hybrid": True, "mamba": False, "linear_attention": False}
    if len(kinds) != config.integer("num_hidden_layers") or not all(kind in known for kind in kinds):
        raise UnsupportedError("[convert] unsupported 'layers_block_type': expected mamba or hybrid for each layer")
    return [known[str(kind)] for kind in kinds]


def _n_kv_heads(config: Fields) -> list[int]:
    n = config.integer("num_key_value_heads", config.integer("num_attention_heads", low=1), low=1)
    return [n if is_hybrid else 0 for is_hybrid in hybrid_layers(config)]


def head_size(config: Fields) -> int:
    return 2 * config.integer("hidden_size") // config.integer("num_attention_heads", low=1)


def inner_size(config: Fields) -> int:
    return int(config.number("mamba_expand", 2) * config.integer("hidden_size"))


def _check(config: Fields) -> None:
    """Raise UnsupportedError if fields that follow from others have values of their own."""
    found = [i for i, is_hybrid in enumerate(hybrid_layers(config)) if is_hybrid]
    if config.items("hybrid_layer_ids") not in ([], found):
        raise UnsupportedError(f"[convert] unsupported 'hybrid_layer_ids': expected {found} by 'layers_block_type'")
    width, sizes = (
        config.integer("hidden_size"),
        {"attention_head_dim": head_size(config), "head_dim": head_size(config)},
    )
    sizes |= {
        "attention_hidden_size": 2 * width,
        "mamba_headdim": inner_size(config) // config.integer("n_mamba_heads", 8, low=1),
    }
    for name, value in sizes.items():
        if config.has(name) and config.integer(name) != value:
            raise UnsupportedError(f"[convert] unsupported '{name}': {config.value(name)} (expected {value})")
    if not config.flag("use_mem_rope", False):
        config.read(("rope_parameters", "rope_scaling", "rope_theta"))


class _Checkpoint(Checkpoint):
    """Adapters are stored with the layer that uses them; copies of shared weights are left out."""

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        hybrid = [i for i, is_hybrid in enumerate(hybrid_layers(config)) if is_hybrid]
        n_block, own = config.integer("num_mem_blocks", 1, low=1), {}
        for name in there:
            if not (found := _SHARED.fullmatch(name)):
                own[name.replace(".mamba_decoder.", ".")] = name
            elif int(found[1]) not in hybrid[:n_block]:
                continue
            elif (part := _ADAPTER.fullmatch(found[2])) and int(part[3]) < len(hybrid):
                own[f"model.layers.{hybrid[int(part[3])]}.{part[1] or part[2]}_adapter.{part[4]}"] = name
            else:
                own[name] = name
        found_targets = super().targets(config, entries, own.keys())
        return [replace(each, sources=tuple(own[source] for source in each.sources)) for each in found_targets]


_LAYER = "model.layers.{i}"
_BIAS = only_with("add_bias_linear", default=False, biases=True)
_ADAPTED = only_with("use_shared_attention_adapter", default=False)
HF = {
    "Zamba2ForCausalLM": _Checkpoint(
        "zamba2",
        {
            "context_length": u32("max_position_embeddings", default=4096),
            "embedding_length": u32("hidden_size"),
            "block_count": u32("num_hidden_layers"),
            "feed_forward_length": u32("intermediate_size", default=lambda config: 4 * config.integer("hidden_size")),
            "attention.head_count": u32("num_attention_heads", low=1),
            "attention.head_count_kv": computed("u32[]", _n_kv_heads),
            "attention.key_length": computed("u32", head_size),
            "attention.value_length": computed("u32", head_size),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "shared_block_count": u32("num_mem_blocks", default=1, low=1),
            "shared_adapter_rank": u32("adapter_rank", default=128),
            "ssm.conv_kernel": u32("mamba_d_conv", default=4),
            "ssm.inner_size": computed("u32", inner_size),
            "ssm.state_size": u32("mamba_d_state", default=64),
            "ssm.time_step_rank": u32("n_mamba_heads", default=8),
            "ssm.group_count": u32("mamba_ngroups", default=1),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.final_layernorm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            **mixer_tensors(f"{_LAYER}.mamba", "mamba_ngroups", 1, bias="add_bias_linear"),
            "blk.{i}.ssm_conv1d": tensor(f"{_LAYER}.mamba.conv1d", change=squeezed),
            "blk.{i}.shared_norm": f"{_LAYER}.shared_transformer.input_layernorm",
            "blk.{i}.ffn_norm": f"{_LAYER}.shared_transformer.pre_ff_layernorm",
            **{
                f"blk.{{i}}.attn_{ours}": f"{_LAYER}.shared_transformer.self_attn.{theirs}_proj"
                for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o"))
            },
            **{
                f"blk.{{i}}.attn_{one}_adapter_{part}": tensor(f"{_LAYER}.{one}_adapter.{n}", change=_ADAPTED)
                for one in "qkv"
                for n, part in enumerate("ab")
            },
            "blk.{i}.ffn_up": tensor(f"{_LAYER}.shared_transformer.feed_forward.gate_up_proj", change=_BIAS),
            "blk.{i}.ffn_down": tensor(f"{_LAYER}.shared_transformer.feed_forward.down_proj", change=_BIAS),
            "blk.{i}.ffn_up_adapter_a": f"{_LAYER}.gate_up_adapter.0",
            "blk.{i}.ffn_up_adapter_b": f"{_LAYER}.gate_up_adapter.1",
            "blk.{i}.shared_output": f"{_LAYER}.linear",
        },
        # Transformers uses time_step_min, an initialization parameter, as a limit; the publisher's models have none.
        # Without tied embeddings, transformers does not share the blocks either.
        fixed={
            "hidden_act": ("gelu",),
            "use_long_context": (False,),
            "time_step_min": (0.001, 0.0, None),
            "tie_word_embeddings": (True,),
        },
        checks=(_check,),
        rope=lambda config: rope_keys(config) if config.flag("use_mem_rope", False) else iter(()),
        tied=True,
        unused=(
            "time_step_*",
            "chunk_size",
            "use_mamba_kernels",
            "use_mem_eff_path",
            "use_conv_bias",
            "num_logits_to_keep",
            "kv_channels",
            "num_query_groups",
        ),
    )
}
