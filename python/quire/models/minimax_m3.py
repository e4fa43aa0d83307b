"""MiniMax M3 (MiniMax 2026), text: query and key norms, partial RoPE, experts and MLPs with gpt-oss's activation.

Contexts longer than ``top_k`` blocks of ``block_size`` tokens (2048 tokens in published models) attend to the blocks
that an indexer picks for each head of keys, on the CPU.  Shorter ones attend to all tokens, which is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    Key,
    Source,
    adding,
    computed,
    factor,
    half,
    n_dense,
    rope_keys,
    tensor,
    u32,
    with_pictures,
)
from ..checkpoints.mapping.rope import rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import ROUTING, CacheSpec, ExpertConfig, Keys, MoE, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from ..nn.compressed import Layers
from . import qwen3
from .base import MAX_HEAD_DIM, MAX_HEADS, Block, Decoder, DenseConfig, Layer

ARCHES = ("minimax-m3",)
ALPHA, LIMIT = 1.702, 7.0  # files have no keys for them
BLOCK = 32  # tokens of a block of the cache, whose multiple an indexer's block is


class ClampedMLP:
    def __init__(self, weights: Weights, dim: int, ffn_dim: int, suffix: str = "") -> None:
        self.gate, self.up = (weights.linear(f"ffn_{one}{suffix}", dim, ffn_dim) for one in ("gate", "up"))
        self.down = weights.linear(f"ffn_down{suffix}", ffn_dim, dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(graph.clamped_swiglu(self.gate(x), self.up(x), alpha=ALPHA, limit=LIMIT))


@dataclass(frozen=True)
class IndexerSizes:
    n_head: int
    head_dim: int
    block: int  # tokens
    n_picked: int  # blocks
    n_local: int

    @classmethod
    def read(cls, keys: Keys, n_rot: int) -> IndexerSizes:
        return cls(
            n_head=keys.integer("attention.indexer.head_count", low=1, high=MAX_HEADS),
            head_dim=keys.integer("attention.indexer.key_length", low=n_rot, high=MAX_HEAD_DIM),
            block=keys.integer("attention.indexer.block_size", low=1, high=1 << 16),
            n_picked=keys.integer("attention.indexer.top_k", low=1, high=1 << 24),
            n_local=keys.integer("attention.indexer.local_blocks", low=0, high=1 << 24),
        )

    @property
    def most(self) -> int:
        """The longest context of which all blocks are picked."""
        return self.block * self.n_picked

    def reason(self, n_kv_head: int) -> str:
        """Return why longer contexts are unsupported, or nothing."""
        if self.block % BLOCK:
            return f"attention.indexer.block_size {self.block} is not divisible by {BLOCK}"
        if not 1 <= self.n_local <= self.n_picked:
            return f"attention.indexer.local_blocks {self.n_local} is not in 1 to {self.n_picked}"
        if n_kv_head % self.n_head:
            return f"{n_kv_head} heads of keys are not divisible by {self.n_head} heads of the indexer"
        return ""


class Indexer:
    def __init__(
        self, weights: Weights, config: DenseConfig, sizes: IndexerSizes, layer: int, rotation: RopeSpec
    ) -> None:
        self.sizes, self.layer, self.rotation = sizes, layer, rotation
        self.q = weights.linear("indexer.q_proj", config.dim, sizes.n_head * sizes.head_dim)
        self.k = weights.linear("indexer.k_proj", config.dim, sizes.head_dim)
        self.q_norm, self.k_norm = (weights.norm(f"indexer.{x}_norm", sizes.head_dim, config.eps) for x in "qk")

    def __call__(self, x: Tensor, step: Step) -> Tensor | None:
        sizes = self.sizes
        if step.n_ctx <= sizes.most:
            step.tracer.leave_unused(self.layer)
            return None
        q = rope(self.q_norm(self.q(x).heads(sizes.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(1)), step.positions, self.rotation)
        return step.pick_blocks(self.layer, q, k, block=sizes.block, n_picked=sizes.n_picked, n_local=sizes.n_local)


class Attention(qwen3.Attention):
    indexer: Indexer | None = None

    def attended(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        picked = None if self.indexer is None else self.indexer(x, step)
        return step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale, picked=picked)


class MiniMaxM3(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", reads=ROUTING)
        n_shared = keys.integer("expert_shared_count", low=1, high=64)
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        self.sizes = IndexerSizes.read(keys, config.n_rot) if keys.has("attention.indexer.top_k") else None
        self.index_layers, self.reason = Layers(config.n_layer), ""
        has_indexer = self._layers_with_indexers(keys, weights, config)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        spec = experts.spec(unit="clamped_swiglu", alpha=ALPHA, limit=LIMIT)

        def attention(i: int, block: Weights) -> Attention:
            made = Attention(config, block, i, rotation)
            if self.sizes is not None and has_indexer[i]:
                layer = self.index_layers.add(CacheSpec.latent(rank=self.sizes.head_dim, n_rot=0))
                made.indexer = Indexer(block, config, self.sizes, layer, rotation)
            return made

        def mlp(i: int, block: Weights) -> Layer:
            if i < n_dense_layers:
                return ClampedMLP(block, config.dim, config.ffn_dim)
            shared = ClampedMLP(block, config.dim, n_shared * experts.ffn_dim, "_shexp")
            routed = MoE(block, config.dim, experts.ffn_dim, experts.n, spec)
            return lambda x: routed(x) + shared(x)

        blocks = [
            Block(config, block, attention(i, block), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)
        if self.sizes is not None and self.reason:
            self.config = replace(config, n_ctx_train=min(config.n_ctx_train, self.sizes.most))

    def _layers_with_indexers(self, keys: Keys, weights: Weights, config: DenseConfig) -> list[bool]:
        n = config.n_layer
        found = [block.has("indexer.q_proj.weight") for block in weights.blocks(n)]
        if keys.has("attention.indexer.types"):
            types = keys.integers("attention.indexer.types", n, high=1)
            if any(one and not has for one, has in zip(types, found, strict=True)):
                raise LoadError("[minimax-m3] attention.indexer.types names layers without an indexer")
            found = [bool(one) for one in types]
        elif self.sizes is not None and not any(found):  # files of older converters
            self.reason = "the file has no indexer"
        if self.sizes is not None and any(found):
            self.reason = self.sizes.reason(config.n_kv_head)
        used = [one and self.sizes is not None and not self.reason for one in found]
        for block, one in zip(weights.blocks(n), used, strict=True):
            if not one:
                block.ignore("index*", "the layer attends to all tokens")
        return used

    def cache(self) -> list[CacheSpec]:
        return [*super().cache(), *self.index_layers.specs]

    def __call__(self, step: Step) -> Tensor:
        if self.sizes is not None and self.reason and step.n_ctx > self.sizes.most:
            raise UnsupportedError(
                f"[minimax-m3] n_ctx {step.n_ctx} is too large: {self.reason}, so contexts are limited to "
                f"{self.sizes.most} tokens (n_ctx={self.sizes.most})"
            )
        return super().__call__(step)


MODEL = MiniMaxM3

# --- checkpoint ---

_LEGACY = {
    "index_topk_blocks": "sparse_topk_blocks", "index_block_size": "sparse_block_size",
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_local_blocks": "sparse_local_block",
}  # fmt: skip


def _index(name: str, default: int) -> Key:
    """Read a field of the indexer, from a section in published configurations."""

    def read(config: Fields) -> int | None:
        old = config.inner("sparse_attention_config")
        number = old.integer(_LEGACY[name], config.integer(name, default), low=1)
        return number if any(_sparse(config)) else None

    return computed("u32", read)


def _dense_layers(config: Fields) -> int:
    frequency = config.items("moe_layer_freq")
    return n_dense(config, list(frequency).index(1) if 1 in frequency else len(frequency))


def _shared(config: Fields) -> int:
    size, one = config.integer("shared_intermediate_size", 3072), config.integer("intermediate_size", 3072, low=1)
    if size % one:
        raise UnsupportedError(
            f"[convert] unsupported 'shared_intermediate_size': {size} (expected a multiple of {one})"
        )
    return size // one


def _n_rot(config: Fields) -> int:
    head_dim = config.integer("head_dim", 128)
    n = config.integer("rotary_dim", 64)
    return int(head_dim * rope_of(config).number("partial_rotary_factor", n / head_dim))


def _sparse(config: Fields) -> list[bool]:
    """Return the layers with an indexer."""
    flags = config.inner("sparse_attention_config").items("sparse_attention_freq")
    kinds = config.items("layer_types")
    if kinds:
        return [kind == "minimax_m3_sparse" for kind in kinds]
    return [bool(flag) for flag in flags]


def _types(config: Fields) -> list[bool] | None:
    return _sparse(config) if any(_sparse(config)) else None


def _known_kinds(config: Fields) -> None:
    if unknown := {*config.items("layer_types")} - {"full_attention", "minimax_m3_sparse"}:
        raise UnsupportedError(f"[convert] unsupported 'layer_types': {sorted(map(str, unknown))}")


def _indexer(layer: str) -> dict[str, Source]:
    """Return the indexer's tensors, by the prefix of their names."""
    norms = {f"blk.{{i}}.indexer.{x}_norm": _one_added(f"{layer}{x}_norm") for x in "qk"}
    return {**{f"blk.{{i}}.indexer.{x}_proj": tensor(f"{layer}{x}_proj") for x in "qk"}, **norms}


def _two(name: str, which: int) -> Source:
    return tensor(name, change=half(which))


def _one_added(name: str) -> Source:
    return tensor(name, change=adding(1.0))


_LAYER = "model.layers.{i}"
_NORMS = {
    "output_norm": _one_added("model.norm"),
    "blk.{i}.attn_norm": _one_added(f"{_LAYER}.input_layernorm"),
    "blk.{i}.ffn_norm": _one_added(f"{_LAYER}.post_attention_layernorm"),
    "blk.{i}.attn_q_norm": _one_added(f"{_LAYER}.self_attn.q_norm"),
    "blk.{i}.attn_k_norm": _one_added(f"{_LAYER}.self_attn.k_norm"),
}
_MLP, _MOE = f"{_LAYER}.mlp", f"{_LAYER}.block_sparse_moe"
_TEXT = Checkpoint(
    "minimax-m3",
    {
        **DECODER_KEYS,
        "feed_forward_length": u32("dense_intermediate_size", default=12288),
        "attention.key_length": u32("head_dim", default=128),
        "attention.value_length": u32("head_dim", default=128),
        "attention.indexer.top_k": _index("index_topk_blocks", 16),
        "attention.indexer.block_size": _index("index_block_size", 128),
        "attention.indexer.head_count": _index("index_n_heads", 4),
        "attention.indexer.key_length": _index("index_head_dim", 128),
        "attention.indexer.local_blocks": _index("index_local_blocks", 1),
        "attention.indexer.types": computed("bool[]", _types),
        "rope.dimension_count": computed("u32", _n_rot),
        "expert_count": u32("num_local_experts", "num_experts", default=128),
        "expert_used_count": u32("num_experts_per_tok", default=4),
        "expert_feed_forward_length": u32("intermediate_size", default=3072),
        "expert_shared_count": computed("u32", _shared),
        "expert_gating_func": computed("u32", lambda config: 2),
        "expert_weights_norm": computed("bool", lambda config: True),
        "expert_weights_scale": factor("routed_scaling_factor", default=2.0),
        "leading_dense_block_count": computed("u32", _dense_layers),
    },
    {
        **{name: source for name, source in DECODER_TENSORS.items() if ".ffn_" not in name},
        **_NORMS,
        **_indexer(f"{_LAYER}.self_attn.indexer."),
        "blk.{i}.ffn_gate": _two(f"{_MLP}.gate_up_proj", 0),
        "blk.{i}.ffn_up": _two(f"{_MLP}.gate_up_proj", 1),
        "blk.{i}.ffn_down": f"{_MLP}.down_proj",
        "blk.{i}.ffn_gate_inp": f"{_MLP}.gate",
        "blk.{i}.exp_probs_b.bias": f"{_MLP}.gate.e_score_correction_bias",
        "blk.{i}.ffn_gate_exps.weight": _two(f"{_MLP}.experts.gate_up_proj", 0),
        "blk.{i}.ffn_up_exps.weight": _two(f"{_MLP}.experts.gate_up_proj", 1),
        "blk.{i}.ffn_down_exps.weight": f"{_MLP}.experts.down_proj",
        "blk.{i}.ffn_gate_shexp": _two(f"{_MLP}.shared_experts.gate_up_proj", 0),
        "blk.{i}.ffn_up_shexp": _two(f"{_MLP}.shared_experts.gate_up_proj", 1),
        "blk.{i}.ffn_down_shexp": f"{_MLP}.shared_experts.down_proj",
    },
    fixed={"hidden_act": (*SILU, "swigluoai"), "swiglu_alpha": (ALPHA,), "swiglu_limit": (LIMIT,)},
    checks=(_known_kinds,),
    rope=lambda config: rope_keys(config, 5e6),
    unused=("router_jitter_noise", "sparse_attention_config", "use_mtp", "num_mtp_modules", "mtp_transformer_layers"),
)
HF = {
    "MiniMaxM3VLForCausalLM": _TEXT,
    "MiniMaxM3SparseForConditionalGeneration": with_pictures(
        replace(
            _TEXT,
            tensors={
                **DECODER_TENSORS,
                **_NORMS,
                **_indexer(f"{_LAYER}.self_attn.index_"),
                "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
                "blk.{i}.exp_probs_b.bias": f"{_MOE}.e_score_correction_bias",
                "blk.{i}.ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
                "blk.{i}.ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
                "blk.{i}.ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
                **{f"blk.{{i}}.ffn_{one}_shexp": f"{_MOE}.shared_experts.{one}_proj" for one in ("gate", "up", "down")},
            },
            ignored=(*_TEXT.ignored, "*patch_merge_mlp.*"),
        )
    ),
}
