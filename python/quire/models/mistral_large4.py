"""Mistral Large 4 (Mistral AI 2026), text: GLM 5's attention, with scores that grow, to rows that layers share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .._native import graph
from ..checkpoints.mapping import (
    SILU,
    Array,
    Checkpoint,
    Fields,
    Source,
    computed,
    f32,
    factor,
    n_dense,
    tensor,
    u32,
    with_pictures,
)
from ..errors import LoadError, UnsupportedError
from ..nn import (
    CacheSpec,
    ExpertConfig,
    Keys,
    LatentSizes,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    frequency_factors,
    rope_spec,
    select_rows,
)
from ..nn.latent import Picker, expanding
from . import deepseek2, deepseek32
from .base import MAX_LAYERS, Block, Decoder, DenseConfig, dense_then_experts, layers_left_out

ARCHES = ("mistral_large4",)


class Growth:
    """Multiplies heads by ``scale * log(position + 1) + bias``."""

    def __init__(self, weights: Weights, name: str, n_head: int) -> None:
        scale, bias = (weights.numbers(f"{name}.{part}", (n_head,))[:, None] for part in ("weight", "bias"))
        self.scale = weights.computed(f"{name}.scale", scale)
        self.rest = weights.computed(f"{name}.rest", bias - scale)

    def __call__(self, q: Tensor, step: Step) -> Tensor:
        grown = graph.scale_by_position(graph.multiply_weight(q, self.scale), step.positions, beta=1.0, n_ctx=1)
        return grown + graph.multiply_weight(q, self.rest)


class Indexer(deepseek32.Indexer):
    """Makes its queries from the layer's input; does not rotate in layers without positions."""

    def __init__(
        self,
        weights: Weights,
        dim: int,
        sizes: deepseek32.IndexerSizes,
        *,
        layer: int,
        rotation: RopeSpec,
        rotates: bool,
    ) -> None:
        super().__init__(weights, dim, dim, sizes=sizes, layer=layer, rotation=rotation)
        self.rotates = rotates
        self.q_norm = weights.layer_norm("indexer.q_norm", dim, deepseek32.NORM_EPS)
        self.growth = Growth(weights, "indexer.q_growth", sizes.n_head)

    def placed(self, x: Tensor, step: Step) -> Tensor:
        return super().placed(x, step) if self.rotates else x

    def __call__(self, x: Tensor, latent_q: Tensor, step: Step) -> Tensor:
        q, k = self.q(self.q_norm(x)).heads(self.sizes.n_head), self.k_norm(self.k(x)).heads(1)
        q, k = self.placed(self.growth(q, step), step), self.placed(k, step)
        return step.pick(self.layer, q, k, self.weights(x), n_picked=self.sizes.top_k)


class Attention:
    """Latent attention to the layer's own rows, or to those of an earlier one, ``source``."""

    def __init__(
        self, config: DenseConfig, weights: Weights, sizes: LatentSizes, rotation: RopeSpec, *, layer: int, source: int
    ) -> None:
        self.sizes, self.rotation, self.layer, self.source = sizes, rotation, layer, source
        self.q = weights.linear("attn_q", config.dim, sizes.n_head * sizes.head_dim)
        self.growth = Growth(weights, "attn_q_growth", sizes.n_head)
        self.is_own = source == layer
        if self.is_own:
            self.kv_a = weights.linear("attn_kv_a_mqa", config.dim, sizes.rank + sizes.n_rot)
            self.kv_a_norm = weights.norm("attn_kv_a_norm", sizes.rank, config.eps)
        self.k_b, self.v_b = expanding(weights, sizes)
        self.o = weights.linear("attn_output", sizes.n_head * sizes.v_dim, config.dim)
        self.picker: Picker | None = None

    def row(self, x: Tensor, step: Step) -> Tensor:
        sizes, kv = self.sizes, self.kv_a(x)
        if not sizes.n_rot:
            return self.kv_a_norm(kv).heads(1)
        latent = self.kv_a_norm(graph.slice(kv, 0, 0, sizes.rank)).heads(1)
        rotated = graph.slice(kv, 0, sizes.rank, sizes.rank + sizes.n_rot).heads(1)
        return graph.concat(latent, graph.rope(rotated, step.positions, self.rotation), 0)

    def queries(self, x: Tensor, step: Step) -> Tensor:
        sizes, q = self.sizes, self.q(x).heads(self.sizes.n_head)
        if not sizes.n_rot:
            return self.growth(graph.head_linear(q, self.k_b), step)
        latent = graph.head_linear(graph.slice(q, 0, 0, sizes.n_nope), self.k_b)
        rotated = graph.rope(graph.slice(q, 0, sizes.n_nope, sizes.head_dim), step.positions, self.rotation)
        return self.growth(graph.concat(latent, rotated, 0), step)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, scale = self.queries(x, step), self.sizes.head_dim**-0.5
        picked = None if self.picker is None else self.picker(x, x, step)
        if self.is_own:
            y = step.attend_latent(self.layer, q, self.row(x, step), scale=scale, picked=picked)
        else:
            y = graph.attend_to_written(self.source, q, scale=scale, picked=picked)
        return self.o(graph.head_linear(y, self.v_b).merge_heads())


class MistralLarge4(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        if layers_left_out(keys, weights, config.n_layer):
            raise UnsupportedError("[mistral_large4] unsupported nextn_predict_layers: expected 0")
        sizes, n_layer = deepseek2.sizes_of(keys, config), config.n_layer
        if sizes.q_rank:
            raise UnsupportedError(f"[mistral_large4] unsupported attention.q_lora_rank {sizes.q_rank}: expected 0")
        config = replace(config, n_kv_head=1, head_dim=sizes.rank + sizes.n_rot, v_head_dim=sizes.rank)
        rotates = [bool(one) for one in keys.integers("attention.rotated_layers", n_layer, high=1)]
        self.sources = sources_of(keys, rotates)
        own = [i == source for i, source in enumerate(self.sources)]
        rotation = rope_spec(
            keys, n_dims=sizes.n_rot, layout="interleaved", factors=frequency_factors(weights, sizes.n_rot)
        )
        unrotated = replace(sizes, n_rot=0, n_nope=sizes.head_dim)
        index_sizes = deepseek32.IndexerSizes.read(keys, sizes.n_rot)
        has_indexer = keys.integers("attention.indexer.types", n_layer, 1, high=1)
        if not has_indexer[0]:
            raise LoadError("[mistral_large4] blk.0 has no indexer, whose choice it could attend to")
        experts = ExpertConfig.read(
            keys, n_layer, normalize=True, reads=("expert_weights_scale", "expert_weights_norm", "expert_gating_func")
        )
        shared_dim = keys.integer("expert_shared_count", 0, high=64) * experts.ffn_dim
        mlp = dense_then_experts(config, experts, shared_dim, keys.integer("leading_dense_block_count", 0))
        indexers, cached = deepseek32.Indexers(), iter(range(n_layer, 2 * MAX_LAYERS))

        def attention(i: int, block: Weights) -> Attention:
            one = Attention(
                config, block, sizes if rotates[i] else unrotated, rotation, layer=i, source=self.sources[i]
            )
            if has_indexer[i]:
                where = next(cached)
                one.picker = indexers.own(
                    Indexer(block, config.dim, index_sizes, rotation=rotation, layer=where, rotates=rotates[i])
                )
            else:
                block.ignore("indexer.*", "the layer attends to what an earlier one picked")
                one.picker = indexers.shared
            return one

        blocks = [
            Block(config, block, attention(i, block), mlp(i, block)) for i, block in enumerate(weights.blocks(n_layer))
        ]
        super().__init__(config, weights, blocks)
        self.cap = keys.number("final_logit_softcapping", 0.0)
        rows = [CacheSpec.latent(rank=sizes.rank, n_rot=sizes.n_rot if one else 0) for one in rotates]
        self.cached = [row if is_own else CacheSpec() for row, is_own in zip(rows, own, strict=True)]
        self.cached += [index_sizes.cache()] * sum(has_indexer)

    def cache(self) -> list[CacheSpec]:
        return self.cached

    def logits(self, x: Tensor, step: Step) -> Tensor:
        x = self.head(self.norm(select_rows(step.run_layers(self.blocks, x), step.logit_rows)))
        return graph.soft_cap(x, self.cap) if self.cap else x


def sources_of(keys: Keys, rotates: list[bool]) -> list[int]:
    """Read whose rows each layer attends to."""
    sources = keys.integers("attention.source_layers", len(rotates), high=len(rotates) - 1)
    for i, source in enumerate(sources):
        if source > i or sources[source] != source or rotates[source] != rotates[i]:
            raise LoadError(f"[mistral_large4] invalid attention.source_layers: layer {i} cannot read layer {source}")
    return sources


MODEL = MistralLarge4

# --- checkpoint ---


def _rotated(config: Fields) -> list[int]:
    n, period = config.integer("num_hidden_layers", 72), config.integer("no_rope_layer_interval", 4, low=1)
    found = config.items("no_rope_layers")
    return [int(bool(one)) for one in found] or [int((i + 1) % period != 0) for i in range(n)]


def _sources(config: Fields) -> list[int]:
    """Return the layers' sources; transformers reads the last rows that a layer of the same kind shares."""
    n, kinds = config.integer("num_hidden_layers", 72), _rotated(config)
    found = [one for one in config.items("kv_source_layers") if isinstance(one, int)] or list(range(n))
    for i, source in enumerate(found):
        shared = [one for one in range(i) if kinds[one] == kinds[i] and one in found[one + 1 :] and found[one] == one]
        if source != i and (not shared or source != shared[-1]):
            raise UnsupportedError(f"[convert] unsupported 'kv_source_layers': layer {i} reads layer {source}")
    return found


def _expanded(*, of_values: bool) -> Source:
    def change(x: Array, config: Fields) -> Array:
        n_v = config.integer("v_head_dim", 128)
        heads = x.reshape(config.integer("num_attention_heads", 64), -1, x.shape[-1])
        return heads[:, -n_v:] if of_values else heads[:, :-n_v].swapaxes(1, 2)

    return tensor(f"{_ATTENTION}.wkv_b", change=change)


def _divisors(x: Array, config: Fields) -> Array:
    return np.exp(-x)


_LAYER = "layers.{i}"
_ATTENTION = f"{_LAYER}.attention"
_INDEXER = f"{_ATTENTION}.indexer"
_GLM = deepseek32.HF["GlmMoeDsaForCausalLM"]
_REPLACED = (
    "attention.latent_norm_rms_epsilon",
    "nextn_predict_layers",
    "expert_group_count",
    "expert_group_used_count",
)
_TEXT = Checkpoint(
    "mistral_large4",
    {
        **{name: key for name, key in _GLM.keys.items() if name not in _REPLACED},
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "attention.q_lora_rank": computed("u32", lambda config: 0),
        "attention.key_length_mla": computed(
            "u32", lambda config: config.integer("qk_nope_head_dim", 64) + config.integer("qk_rope_head_dim", 64)
        ),
        "attention.value_length_mla": u32("v_head_dim", default=128),
        "attention.rotated_layers": computed("u32[]", _rotated),
        "attention.source_layers": computed("u32[]", _sources),
        "expert_count": u32("n_routed_experts", "num_experts", "num_local_experts", default=128),
        "expert_used_count": u32("num_experts_per_tok", default=4),
        "expert_feed_forward_length": u32("moe_intermediate_size", default=6144),
        "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
        "expert_weights_norm": computed("bool", lambda config: True),
        "expert_gating_func": computed("u32", lambda config: 1),
        "leading_dense_block_count": computed(
            "u32", lambda config: n_dense(config, config.integer("first_k_dense_replace", 1))
        ),
        "final_logit_softcapping": f32("final_logit_softcapping", default=30.0),
    },
    {
        "token_embd": "tok_embeddings",
        "output_norm": "norm",
        "output": "output",
        "rope_freqs.weight": tensor("lerope.alpha", change=_divisors),
        "blk.{i}.attn_norm": f"{_LAYER}.attention_norm",
        "blk.{i}.ffn_norm": f"{_LAYER}.ffn_norm",
        "blk.{i}.attn_q": f"{_ATTENTION}.wq",
        "blk.{i}.attn_q_growth.weight": f"{_ATTENTION}.ssmax_scaling.s",
        "blk.{i}.attn_q_growth.bias": f"{_ATTENTION}.ssmax_scaling.b",
        "blk.{i}.attn_kv_a_mqa": f"{_ATTENTION}.wkv_a_with_mqa",
        "blk.{i}.attn_kv_a_norm": f"{_ATTENTION}.kv_a_norm",
        "blk.{i}.attn_k_b": _expanded(of_values=False),
        "blk.{i}.attn_v_b": _expanded(of_values=True),
        "blk.{i}.attn_output": f"{_ATTENTION}.wo",
        "blk.{i}.indexer.attn_q_b": f"{_INDEXER}.wq_b",
        "blk.{i}.indexer.q_norm": f"{_INDEXER}.q_input_norm",
        "blk.{i}.indexer.q_growth.weight": f"{_INDEXER}.ssmax_scaling.s",
        "blk.{i}.indexer.q_growth.bias": f"{_INDEXER}.ssmax_scaling.b",
        "blk.{i}.indexer.attn_k": f"{_INDEXER}.wk",
        "blk.{i}.indexer.k_norm": f"{_INDEXER}.k_norm",
        "blk.{i}.indexer.proj": f"{_INDEXER}.weights_proj",
        "blk.{i}.ffn_gate_inp": f"{_LAYER}.gate",
        **{
            f"blk.{{i}}.ffn_{ours}{end}": f"{_LAYER}.{where}.{theirs}"
            for end, where in (("", "feed_forward"), ("_exps", "experts.{e}"), ("_shexp", "shared_experts"))
            for ours, theirs in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
        },
    },
    fixed={"hidden_act": SILU, "attention_bias": (False,), "n_group": (1, None), "topk_group": (1, None)},
    checks=(deepseek2.all_heads,),
    base="",
    unused=(*deepseek2.UNUSED, "first_k_dense_replace", "layer_types", "index_topk_*", "index_skip_*", "no_rope_*"),
    ignored=(
        "mtp_dspark.*",
        "vision_encoder.*",
        "patch_merger.*",
        "pre_mm_projector_norm.*",
        "vision_language_adapter.*",
    ),
)
HF = {
    "MistralLarge4ForConditionalGeneration": replace(with_pictures(_TEXT), homes=(), ignored=_TEXT.ignored, defaults={})
}
