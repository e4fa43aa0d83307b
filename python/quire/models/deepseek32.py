"""DeepSeek V3.2 (DeepSeek-AI 2025), GLM 5 (Zhipu AI 2026): V3 with sparse attention to tokens that an indexer picks.

The layer that predicts later tokens attends to all of them. That changes how many drafts are accepted, not answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .._native import graph
from ..checkpoints.mapping import PREDICTING_LAYERS, Fields, Key, computed, factor, n_dense, u32
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, Keys, LatentAttention, RopeSpec, Step, Tensor, Weights, latent_rope
from ..nn.latent import Picker
from ..nn.rotary import Layout
from . import deepseek2
from .base import MAX_HEAD_DIM, Block

ARCHES = ("deepseek32", "glm-dsa")
NORM_EPS = 1e-6


@dataclass(frozen=True)
class IndexerSizes:
    n_head: int
    head_dim: int
    n_rot: int  # the first dimensions, which are rotated
    top_k: int

    @classmethod
    def read(cls, keys: Keys, n_rot: int) -> IndexerSizes:
        return cls(
            n_head=keys.integer("attention.indexer.head_count", low=1, high=1024),
            head_dim=keys.integer("attention.indexer.key_length", low=n_rot, high=MAX_HEAD_DIM),
            n_rot=n_rot,
            top_k=keys.integer("attention.indexer.top_k", low=1),
        )

    def cache(self) -> CacheSpec:
        return CacheSpec.latent(rank=self.head_dim - 1, n_rot=1)


class Indexer:
    """Scores all tokens with a few heads, whose keys are shared; the layer attends to those with the largest scores."""

    def __init__(
        self,
        weights: Weights,
        dim: int,
        q_rank: int,
        *,
        sizes: IndexerSizes,
        layer: int,
        rotation: RopeSpec,
        eps: float = NORM_EPS,
    ) -> None:
        self.sizes, self.layer, self.rotation = sizes, layer, rotation
        self.q = weights.linear("indexer.attn_q_b", q_rank, sizes.n_head * sizes.head_dim)
        self.k = weights.linear("indexer.attn_k", dim, sizes.head_dim)
        self.k_norm = weights.layer_norm("indexer.k_norm", sizes.head_dim, eps)
        self.weights = weights.linear("indexer.proj", dim, sizes.n_head)

    def placed(self, x: Tensor, step: Step) -> Tensor:
        n_rot, head_dim = self.sizes.n_rot, self.sizes.head_dim
        rotated = graph.rope(graph.slice(x, 0, 0, n_rot), step.positions, self.rotation)
        return rotated if n_rot == head_dim else graph.concat(rotated, graph.slice(x, 0, n_rot, head_dim), 0)

    def __call__(self, x: Tensor, latent_q: Tensor, step: Step) -> Tensor:
        q, k = self.q(latent_q).heads(self.sizes.n_head), self.k_norm(self.k(x)).heads(1)
        q, k, n = self.placed(q, step), self.placed(k, step), self.sizes.top_k
        return step.pick(self.layer, q, k, self.weights(x), n_picked=n)


class Indexers:
    """The indexers of a model; layers without one attend to what the last one picked."""

    def __init__(self) -> None:
        self.picked: Tensor | None = None

    def own(self, indexer: Callable[[Tensor, Tensor, Step], Tensor]) -> Picker:
        def pick(x: Tensor, latent_q: Tensor, step: Step) -> Tensor:
            self.picked = indexer(x, latent_q, step)
            return self.picked

        return pick

    def shared(self, x: Tensor, latent_q: Tensor, step: Step) -> Tensor | None:
        return self.picked


class DeepSeek32(deepseek2.DeepSeek2):
    indexer: type[Indexer] = Indexer

    def index_eps(self) -> float:
        return NORM_EPS

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        super().__init__(keys, weights, n_vocab)
        config, sizes = self.config, self.sizes
        if not sizes.q_rank:
            raise UnsupportedError(f"[{config.arch}] attention.q_lora_rank 0 is unsupported with an indexer")
        self.index_sizes = IndexerSizes.read(keys, sizes.n_rot)
        layout: Layout = "interleaved" if config.arch in ("glm-dsa", "hy_v4") else "half"
        rotation, _ = latent_rope(keys, n_dims=sizes.n_rot, layout=layout)
        weights.ignore(f"blk.{config.n_layer}.indexer.*", "the layer that predicts later tokens attends to all")
        has_indexer = self._layers_with_indexers(keys, weights)
        self.n_indexer, indexers = sum(has_indexer), Indexers()
        cached = iter(range(config.n_layer, config.n_layer + self.n_indexer))
        for block, layer, has_own in zip(self.blocks, weights.blocks(config.n_layer), has_indexer, strict=True):
            assert isinstance(block, Block)
            assert isinstance(block.attention, LatentAttention)
            if not has_own:
                block.attention.picker = indexers.shared
                continue
            indexer = self.indexer(
                layer,
                config.dim,
                sizes.q_rank,
                sizes=self.index_sizes,
                layer=next(cached),
                rotation=rotation,
                eps=self.index_eps(),
            )
            block.attention.picker = indexers.own(indexer)

    def _layers_with_indexers(self, keys: Keys, weights: Weights) -> list[bool]:
        n = self.config.n_layer
        if keys.is_array("attention.indexer.types"):
            n_file = keys.integer("block_count")
            found = [bool(one) for one in keys.integers("attention.indexer.types", n_file, high=1)[:n]]
        else:
            found = [block.has("indexer.attn_k.weight") for block in weights.blocks(n)]
        if not found[0]:
            raise LoadError(f"[{self.config.arch}] blk.0 has no indexer, whose choice it could attend to")
        for block, has_own in zip(weights.blocks(n), found, strict=True):
            if not has_own:
                block.ignore("indexer.*", "the layer attends to what an earlier one picked")
        return found

    def cache(self) -> list[CacheSpec]:
        return [*super().cache(), *[self.index_sizes.cache()] * self.n_indexer]


MODEL = DeepSeek32

# --- checkpoint ---


def _n_dense(config: Fields) -> int:
    return n_dense(config, config.integer("first_k_dense_replace", 3))


def _types(config: Fields) -> list[bool]:
    """Return the layers with an indexer; the others reuse the previous layer's choice."""
    if kinds := config.items("indexer_types"):
        config.read(("index_topk_freq", "index_skip_topk_offset", "index_topk_pattern"))
        return [kind == "full" for kind in kinds]
    period, first = config.integer("index_topk_freq", 1, low=1), config.integer("index_skip_topk_offset", 2)
    return [max(i - first + 1, 0) % period == 0 for i in range(config.integer("num_hidden_layers"))]


def _all_pick(config: Fields) -> None:
    if any(kind != "indexed_attention" for kind in config.items("layer_types")):
        raise UnsupportedError("[convert] unsupported 'layer_types': expected indexed_attention for all layers")


_KEYS: dict[str, Key] = {
    "attention.indexer.head_count": u32("index_n_heads", default=64),
    "attention.indexer.key_length": u32("index_head_dim", default=128),
    "attention.indexer.top_k": u32("index_topk", default=2048, low=1),
    "expert_group_count": u32("n_group", default=8, low=1),
    "expert_group_used_count": u32("topk_group", default=4, low=1),
    "leading_dense_block_count": computed("u32", _n_dense),
}
_INDEXER = "model.layers.{i}.self_attn.indexer"
_TENSORS = {
    "blk.{i}.indexer.k_norm": f"{_INDEXER}.k_norm",
    "blk.{i}.indexer.proj": f"{_INDEXER}.weights_proj",
    "blk.{i}.indexer.attn_k": f"{_INDEXER}.wk",
    "blk.{i}.indexer.attn_q_b": f"{_INDEXER}.wq_b",
}
_V3 = deepseek2.HF["DeepseekV3ForCausalLM"]
_LITE = deepseek2.HF["Glm4MoeLiteForCausalLM"]
HF = {
    "DeepseekV32ForCausalLM": replace(
        _V3,
        arch="deepseek32",
        keys={**_V3.keys, **_KEYS},
        tensors={**_V3.tensors, **_TENSORS},
        fixed={**_V3.fixed, "mlp_bias": (False,)},
        checks=(*_V3.checks, _all_pick),
    ),
    "GlmMoeDsaForCausalLM": replace(
        _LITE,
        arch="glm-dsa",
        keys={
            **_LITE.keys,
            **_KEYS,
            "attention.q_lora_rank": deepseek2.q_rank(2048),
            "attention.indexer.head_count": u32("index_n_heads", default=32),
            "attention.indexer.types": computed("bool[]", _types),
            "expert_count": u32("n_routed_experts", "num_local_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=2048),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
        },
        tensors={**_LITE.tensors, **_TENSORS},
        fixed={**_LITE.fixed, "mlp_bias": (False,)},
        checks=(*_LITE.checks, _all_pick),
        unused=deepseek2.UNUSED,
        predicting=replace(PREDICTING_LAYERS, by_layer={"attention.indexer.types": True}),
    ),
}
