"""GLM 5.3 Flash (Zhipu AI 2026): Kimi Linear's delta rule, latent attention to picked pools, hyper-connections.

Attention to picked pools runs on the CPU, beside a device for the rest of the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from .._native import graph
from ..checkpoints.mapping import Fields, Key, computed, f32, factor, n_dense, tensor, u32, with_pictures
from ..errors import LoadError, UnsupportedError
from ..nn import (
    ROUTING,
    CacheSpec,
    ExpertConfig,
    Keys,
    LatentAttention,
    LatentSizes,
    MoE,
    MoeSpec,
    Step,
    Tensor,
    Weights,
    select_rows,
)
from ..nn.compressed import Layers
from ..nn.hyper import HyperSizes
from . import deepseek2, deepseek4, deepseek32, kimi_linear
from .base import (
    MAX_DIM,
    MAX_HEAD_DIM,
    MAX_HEADS,
    PREDICTOR,
    Config,
    Decoder,
    DenseConfig,
    Layer,
    Mixer,
    layers_left_out,
)
from .deepseek4 import MAX_RANK, ClampedMLP, V4Config

ARCHES = ("glm5-next",)


@dataclass(frozen=True)
class PoolSizes:
    n_head: int
    head_dim: int
    every: int  # tokens of a pool
    n_picked: int  # pools

    @classmethod
    def read(cls, keys: Keys) -> PoolSizes:
        every = keys.integer("attention.indexer.kpool", low=2, high=1 << 16)
        top_k = keys.integer("attention.indexer.top_k", low=every)
        if 32 % every and every % 32:
            raise UnsupportedError(f"[glm5-next] unsupported attention.indexer.kpool {every}: it does not fit 32")
        if top_k % every:
            raise LoadError(f"[glm5-next] attention.indexer.top_k {top_k} is not divisible by kpool {every}")
        keys.only("attention.indexer.kpool_select_tail", True)
        return cls(
            n_head=keys.integer("attention.indexer.head_count", low=1, high=MAX_HEADS),
            head_dim=keys.integer("attention.indexer.key_length", low=1, high=MAX_HEAD_DIM),
            every=every,
            n_picked=top_k // every,
        )


class PoolIndexer:
    """Picks pools of tokens by the means of their keys, whose weights a gate gives for each number."""

    def __init__(
        self, weights: Weights, config: DenseConfig, q_rank: int, sizes: PoolSizes, layers: Layers, *, eps: float
    ) -> None:
        n = sizes.head_dim
        self.sizes = sizes
        self.q = weights.linear("indexer.attn_q_b", q_rank, sizes.n_head * n)
        self.k, self.gate = (
            weights.linear(name, config.dim, n) for name in ("indexer.attn_k", "indexer_compressor_gate")
        )
        self.k_norm = weights.layer_norm("indexer.k_norm", n, eps)
        self.weights = weights.linear("indexer.proj", config.dim, sizes.n_head)
        bias = weights.dequantized("indexer_compressor_ape.weight", (sizes.every, n)).astype(np.float32)
        self.bias = weights.computed("indexer_compressor_ape.f32", bias)
        self.layer = layers.add(CacheSpec(n_kv_head=1, head_dim=n, window=sizes.every))
        self.pools = layers.add(CacheSpec.latent(rank=n, n_rot=0, every=sizes.every))

    def __call__(self, x: Tensor, latent_q: Tensor, step: Step) -> Tensor:
        sizes, keys = self.sizes, self.k_norm(self.k(x))
        rows = graph.compress(self.layer, keys, self.gate(x), self.bias, every=sizes.every, overlaps=False)
        q = self.q(latent_q).heads(sizes.n_head)
        return step.pick(self.pools, q, rows.heads(1), self.weights(x), n_picked=sizes.n_picked)


class PoolAttention(LatentAttention):
    """Latent attention without rotation to the tokens of picked pools, and to those of the pool that is not whole."""

    every = 0

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        latent_q = self.latent_queries(x)
        q, k = graph.head_linear(self.queries(latent_q), self.k_b), self.kv_a_norm(self.kv_a(x)).heads(1)
        picked = None if self.picker is None else self.picker(x, latent_q, step)
        assert picked is not None
        y = graph.attend_pools(self.layer, q, k, picked, every=self.every, scale=self.scale)
        return self.o(graph.head_linear(y, self.v_b).merge_heads())


class Glm5Next(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        n_all = keys.integer("block_count", low=1)
        n_layer = n_all - layers_left_out(keys, weights, n_all)
        if n_layer < n_all and not weights.has(f"blk.{n_layer}.{PREDICTOR}.weight"):
            raise LoadError(f"[glm5-next] nextn_predict_layers {n_all - n_layer}: the file has no such layers")
        is_full = [n > 0 for n in keys.integers("attention.head_count_kv", n_layer, high=1)]
        sizes, hyper_eps = latent_sizes(keys, n_all), keys.number("attention.layer_norm_rms_epsilon")
        base = replace(Config.read(keys, n_vocab), n_layer=n_layer)
        hyper = HyperSizes.read(keys, base.dim, hyper_eps)
        config = V4Config(
            **vars(base),
            n_head=sizes.n_head,
            n_kv_head=1,
            head_dim=sizes.rank,
            v_head_dim=sizes.rank,
            n_rot=0,
            ffn_dim=keys.same("feed_forward_length", n_all, high=MAX_DIM),
            eps=hyper_eps,
            n_stream=hyper.n,
        )
        config.check()
        self.delta_sizes = (
            keys.integer("kda.head_dim", low=1, high=256),
            keys.integer("ssm.conv_kernel", low=2, high=32),
        )
        bound = kimi_linear.read_bound(keys)
        pools, layers, indexers = PoolSizes.read(keys), Layers(n_layer), deepseek32.Indexers()
        index_eps = keys.number("attention.layer_norm_epsilon", deepseek32.NORM_EPS)
        has_indexer = keys.integers("attention.indexer.types", n_layer, 1, high=1)
        mlps = Experts(keys, config, n_all)

        def mixer(i: int, block: Weights) -> Mixer:
            if not is_full[i]:
                delta = kimi_linear.BoundedDeltaAttention(
                    config, block, i, size=self.delta_sizes[0], kernel=self.delta_sizes[1]
                )
                delta.bound = bound
                return delta
            attention = PoolAttention(
                block, config.dim, sizes, i, eps=config.eps, rotation=None, scale=sizes.head_dim**-0.5
            )
            attention.every = pools.every
            if has_indexer[i]:
                indexer = PoolIndexer(block, config, sizes.q_rank, pools, layers, eps=index_eps)
                attention.picker = indexers.own(indexer)
            elif any(full and own for full, own in zip(is_full[:i], has_indexer, strict=False)):
                block.ignore("indexer*", "the layer attends to what an earlier one picked")
                attention.picker = indexers.shared
            else:
                raise LoadError(f"[glm5-next] blk.{i} has no indexer, nor has an earlier layer")
            return attention

        blocks = [
            deepseek4.Block(config, block, hyper, mixer(i, block), mlps(i, block))
            for i, block in enumerate(weights.blocks(n_layer))
        ]
        super().__init__(config, weights, blocks)
        self.n_stream, self.cached = hyper.n, [*self.own_cache(is_full), *layers.specs]

    def own_cache(self, is_full: Iterable[bool]) -> list[CacheSpec]:
        size, kernel = self.delta_sizes
        inner = self.config.n_head * size
        convs = [(f"conv_{one}", (kernel - 1) * inner) for one in "qkv"]
        delta = CacheSpec(states=[*convs, ("delta", inner * size)])
        rows = CacheSpec.latent(rank=self.config.head_dim, n_rot=0)
        return [rows if full else delta for full in is_full]

    def cache(self) -> list[CacheSpec]:
        return self.cached

    def __call__(self, step: Step) -> Tensor:
        x = graph.repeat_heads(self.embedding(step.tokens).heads(1), self.n_stream).merge_heads()
        rows, dim = select_rows(step.run_layers(self.blocks, x), step.logit_rows), self.config.dim
        total = graph.slice(rows, 0, 0, dim)
        for i in range(1, self.n_stream):
            total = total + graph.slice(rows, 0, i * dim, (i + 1) * dim)
        return self.head(self.norm(total * (1.0 / self.n_stream)))


def latent_sizes(keys: Keys, n_layer: int) -> LatentSizes:
    keys.only("rope.dimension_count", 0)
    sizes = LatentSizes(
        n_head=keys.same("attention.head_count", n_layer, low=1, high=MAX_HEADS),
        q_rank=keys.integer("attention.q_lora_rank", low=1, high=MAX_RANK),
        rank=keys.integer("attention.kv_lora_rank", low=1, high=MAX_HEAD_DIM),
        n_nope=keys.integer("attention.key_length_mla", low=1, high=MAX_HEAD_DIM),
        n_rot=0,
        v_dim=keys.integer("attention.value_length_mla", low=1, high=MAX_HEAD_DIM),
        eps=0.0,
    )
    for name in ("attention.key_length", "attention.value_length"):
        keys.only(name, sizes.rank)
    return sizes


class Experts:
    """The MLPs of all layers: dense ones, then experts with shared ones, all of them with bounded numbers."""

    def __init__(self, keys: Keys, config: DenseConfig, n_layer: int) -> None:
        self.config, self.n_dense = config, keys.integer("leading_dense_block_count", 0)
        self.experts = ExpertConfig.read(keys, n_layer, gating="sigmoid", grouped=True, reads=ROUTING)
        self.n_shared = keys.integer("expert_shared_count", low=1, high=64)
        keys.only("expert_shared_feed_forward_length", self.n_shared * self.experts.ffn_dim)
        self.limits = self.bounds(keys, "swiglu_clamp_exp", n_layer, [0.0] * n_layer)
        self.shared_limits = self.bounds(keys, "swiglu_clamp_shexp", n_layer, self.limits)

    @staticmethod
    def bounds(keys: Keys, name: str, n_layer: int, default: list[float]) -> list[float]:
        limits = keys.numbers(name, n_layer) if keys.has(name) else default
        if min(limits) < 0:
            raise LoadError(f"[glm5-next] {name} {min(limits)} is out of range: expected 0 or more")
        return limits

    def __call__(self, i: int, weights: Weights) -> Mixer:
        config, own, limit = self.config, self.experts, self.limits[i]
        if i < self.n_dense:
            dense = ClampedMLP(weights, config.dim, config.ffn_dim, self.shared_limits[i], end="")
            return lambda x, step: dense(x)
        spec = MoeSpec(
            n_used=own.n_used,
            gating=own.gating,
            normalize=own.normalize,
            scale=own.scale,
            n_group=own.n_group,
            n_group_used=own.n_group_used,
            unit="clamped" if limit else "gated",
            limit=limit or 1.0,
        )
        routed: Layer = MoE(weights, config.dim, own.ffn_dim, own.n, spec)
        shared = ClampedMLP(weights, config.dim, self.n_shared * own.ffn_dim, self.shared_limits[i])
        return lambda x, step: routed(x) + shared(x)


MODEL = Glm5Next

# --- checkpoint ---


def _full_layers(config: Fields) -> list[int]:
    n, kinds = config.integer("num_hidden_layers", 45), config.items("layer_types")
    if kinds and (len(kinds) != n or not set(map(str, kinds)) <= {"linear_attention", *_FULL}):
        raise UnsupportedError("[convert] invalid 'layer_types': expected linear_attention or indexed_attention")
    return [int(kind in _FULL) for kind in kinds] or [int(i % 4 == 3) for i in range(n)]


def _delta(name: str, old: str, default: int) -> Key:
    """Read a size of the delta rule, under its new name or in ``linear_attn_config``."""
    return computed(
        "u32",
        lambda config: config.inner("linear_attn_config").integer(old, config.integer(name, default, low=1), low=1),
    )


def _bound(config: Fields) -> float | None:
    old = config.inner("linear_attn_config")
    safe = old.flag("safe_gate", True)
    config.read(("linear_lower_bound",))
    if old.has("gate_lower_bound") and not old.is_null("gate_lower_bound"):
        return old.number("gate_lower_bound")
    if config.is_null("linear_lower_bound"):
        return -5.0 if old.has("safe_gate") and safe else None
    return config.number("linear_lower_bound", -5.0)


def _limit(config: Fields) -> list[float]:
    if (limit := config.number("swiglu_limit", 10.0)) <= 0:
        raise UnsupportedError(f"[convert] unsupported 'swiglu_limit': {limit} (expected more than 0)")
    return [limit] * config.integer("num_hidden_layers", 45)


def _types(config: Fields) -> list[bool]:
    pattern = config.value("index_topk_pattern")
    if pattern is not None and not config.items("indexer_types"):
        raise UnsupportedError("[convert] unsupported 'index_topk_pattern' without 'indexer_types'")
    return deepseek32._types(config)


def _heads_agree(config: Fields) -> None:
    n = config.integer("num_attention_heads", 64)
    old = config.inner("linear_attn_config")
    if (found := old.integer("num_heads", config.integer("linear_num_heads", 64))) != n:
        raise UnsupportedError(f"[convert] unsupported 'num_heads' of the delta rule: {found} (expected {n})")


_FULL = ("indexed_attention", "full_attention")
_LAYER = "model.layers.{i}"
_ATTENTION = f"{_LAYER}.self_attn"
_GLM = deepseek32.HF["GlmMoeDsaForCausalLM"]
_REPLACED = ("attention.latent_norm_rms_epsilon", "nextn_predict_layers")
_TEXT = replace(
    _GLM,
    arch="glm5-next",
    keys={
        **{name: key for name, key in _GLM.keys.items() if name not in _REPLACED},
        "attention.head_count_kv": computed("u32[]", _full_layers),
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "attention.layer_norm_epsilon": computed("f32", lambda config: deepseek32.NORM_EPS),
        "attention.q_lora_rank": u32("q_lora_rank", default=1536, low=1),
        "attention.key_length": u32("kv_lora_rank", default=512),
        "attention.value_length": u32("kv_lora_rank", default=512),
        "attention.key_length_mla": u32("qk_nope_head_dim", default=256),
        "attention.value_length_mla": u32("v_head_dim", default=256),
        "attention.indexer.types": computed("bool[]", _types),
        "attention.indexer.kpool": u32("index_kpool", default=16, low=2),
        "attention.indexer.kpool_select_tail": computed("bool", lambda config: True),
        "rope.dimension_count": computed("u32", lambda config: 0),
        "ssm.conv_kernel": _delta("linear_conv_kernel_dim", "short_conv_kernel_size", 4),
        "kda.head_dim": _delta("linear_head_dim", "head_dim", 128),
        "kda.gate_lower_bound": computed("f32", _bound),
        "hyper_connection.count": u32("hc_mult", default=4, low=1),
        "hyper_connection.sinkhorn_iterations": u32("hc_sinkhorn_iters", default=20, low=1),
        "hyper_connection.epsilon": f32("hc_eps", default=1e-6),
        "expert_count": u32("n_routed_experts", "num_local_experts", default=288),
        "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
        "leading_dense_block_count": computed(
            "u32", lambda config: n_dense(config, config.integer("first_k_dense_replace", 3))
        ),
        "swiglu_clamp_exp": computed("f32[]", _limit),
        "swiglu_clamp_shexp": computed("f32[]", _limit),
    },
    tensors={
        **_GLM.tensors,
        "blk.{i}.attn_k_b": tensor(
            f"{_ATTENTION}.kv_b_proj", change=deepseek2.part_of_kv(of_values=False, sizes=(256, 256))
        ),
        "blk.{i}.attn_v_b": tensor(
            f"{_ATTENTION}.kv_b_proj", change=deepseek2.part_of_kv(of_values=True, sizes=(256, 256))
        ),
        "blk.{i}.attn_k": f"{_ATTENTION}.k_proj",
        "blk.{i}.attn_v": f"{_ATTENTION}.v_proj",
        **{f"blk.{{i}}.ssm_conv1d_{one}": f"{_ATTENTION}.{one}_conv1d" for one in "qkv"},
        **{f"blk.{{i}}.ssm_{one}": f"{_ATTENTION}.{one}_proj" for one in ("f_a", "f_b", "g_a", "g_b")},
        "blk.{i}.ssm_beta": f"{_ATTENTION}.b_proj",
        "blk.{i}.ssm_dt.bias": f"{_ATTENTION}.dt_bias",
        "blk.{i}.ssm_a": tensor(f"{_ATTENTION}.A_log", change=kimi_linear.rate_of_log),
        "blk.{i}.ssm_norm": f"{_ATTENTION}.o_norm",
        **{
            f"blk.{{i}}.indexer_compressor_{one}.weight": f"{_ATTENTION}.indexer.index_kpool_compress_{one}"
            for one in ("gate", "ape")
        },
        **{
            f"blk.{{i}}.hc_{layer}_{part}.weight": f"{_LAYER}.hc_{layer}_{part}"
            for layer in ("attn", "ffn")
            for part in ("fn", "base", "scale")
        },
    },
    fixed={
        **{name: values for name, values in _GLM.fixed.items() if name not in ("partial_rotary_factor",)},
        "qk_rope_head_dim": (0,),
        "index_kpool_always_select_tail": (True,),
        "mla_use_nope": (True,),
        "mhc": (True,),
    },
    checks=(deepseek2.all_heads, _heads_agree),
    rope=None,
    predicting=None,
    ignored=("*visual.*", "*.layers.45.*"),  # layer 45 predicts later tokens
    unused=(
        *deepseek2.UNUSED,
        "rope_*",
        "first_k_dense_replace",
        "num_experts_per_token",
        "index_topk_*",
        "index_skip_*",
    ),
)
HF = {"Glm5NextForConditionalGeneration": with_pictures(_TEXT)}
