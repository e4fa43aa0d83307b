"""Hunyuan 4 (Tencent 2026): GLM 5's attention with sinks and gates, and hyper-connections that do not mix streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._native import graph
from ..checkpoints.mapping import Fields, computed, f32, factor, half, n_dense, tensor, u32
from ..errors import LoadError, UnsupportedError
from ..nn import (
    ExpertConfig,
    Keys,
    LatentAttention,
    MoE,
    SharedExpert,
    Step,
    Tensor,
    Together,
    Weights,
    select_rows,
    unit_norm,
)
from ..nn.hyper import HyperHead, HyperSizes
from . import base, deepseek2, deepseek32
from .base import DenseConfig, Layer

ARCHES = ("hy_v4",)


@dataclass(frozen=True)
class WideConfig(DenseConfig):
    n_stream: int = 1

    @property
    def widest(self) -> int:
        return max(super().widest, self.n_stream * self.dim)


class Attention(LatentAttention):
    gate: Layer

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        return y.merge_heads() * graph.sigmoid(self.gate(x))


class Indexer(deepseek32.Indexer):
    """Rotates the last dimensions."""

    def placed(self, x: Tensor, step: Step) -> Tensor:
        n_rest, head_dim = self.sizes.head_dim - self.sizes.n_rot, self.sizes.head_dim
        rotated = graph.rope(graph.slice(x, 0, n_rest, head_dim), step.positions, self.rotation)
        return graph.concat(graph.slice(x, 0, 0, n_rest), rotated, 0) if n_rest else rotated


class HyperConnection:
    """A layer's input is a weighted sum of the streams; its output is added to each, times a weight."""

    def __init__(self, weights: Weights, name: str, sizes: HyperSizes, magnitude: float) -> None:
        n = sizes.n
        self.n, self.eps = n, sizes.norm_eps
        self.mixes = weights.linear(f"{name}_fn", n * sizes.dim, 2 * n)
        self.base = weights.tensor(f"{name}_base.weight", (2 * n,), vector=True)
        scale = weights.numbers(f"{name}_scale.weight", (2,))
        self.scale = weights.computed(f"{name}_scale.all", np.repeat(scale, n))
        sizes_of = np.repeat(np.array([1.0, magnitude], np.float32), n)
        self.magnitudes = weights.computed(f"{name}_magnitudes", sizes_of)
        self.least = weights.computed(f"{name}_eps", np.full(2 * n, sizes.eps, np.float32))

    def __call__(self, x: Tensor, layer: Layer) -> Tensor:
        """Apply the layer to streams ``[tokens, n * dim]``."""
        mixes = graph.multiply_weight(self.mixes(unit_norm(x, self.eps)), self.scale)
        weights = graph.multiply_weight(graph.sigmoid(graph.add_weight(mixes, self.base)), self.magnitudes)
        weights, streams = graph.add_weight(weights, self.least), x.heads(self.n)
        y = layer(graph.hyper_input(streams, graph.slice(weights, 0, 0, self.n)))
        after = graph.slice(weights, 0, self.n, 2 * self.n).heads(self.n)
        return (streams + graph.multiply_broadcast(graph.repeat_heads(y.heads(1), self.n), after)).merge_heads()


class Block(base.Block):
    around_attention: HyperConnection
    around_mlp: HyperConnection

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self.around_attention(x, lambda y: self.attention(self.attn_norm(y), step))
        return self.around_mlp(x, lambda y: self.mlp(self.ffn_norm(y)))


class HyV4(deepseek32.DeepSeek32):
    attention, block, indexer = Attention, Block, Indexer

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        super().__init__(keys, weights, n_vocab)
        config = self.config
        sizes = HyperSizes(
            n=keys.integer("hyper_connection.count", low=1, high=64),
            dim=config.dim,
            iterations=0,
            eps=keys.number("hyper_connection.epsilon"),
            norm_eps=config.eps,
        )
        magnitude = keys.number("hyper_connection.magnitude")
        self.config = WideConfig(**vars(config), n_stream=sizes.n)
        for block, layer in zip(self.blocks, weights.blocks(config.n_layer), strict=True):
            assert isinstance(block, Block)
            attention: Any = block.attention
            attention.gate = layer.linear("attn_gate", config.dim, self.sizes.n_head * self.sizes.v_dim)
            attention.sinks = layer.tensor("attn_sinks.weight", (self.sizes.n_head,), vector=True)
            block.around_attention = HyperConnection(layer, "hc_attn", sizes, magnitude)
            block.around_mlp = HyperConnection(layer, "hc_ffn", sizes, magnitude)
        self.n_stream, self.joined = sizes.n, HyperHead(weights, "output_hc", sizes)

    def index_eps(self) -> float:
        return self.config.eps

    def mixture(self, keys: Keys, weights: Weights, dim: int, experts: ExpertConfig, shared_dim: int) -> Layer:
        has_limits = keys.has("swiglu_clamp_exp")
        limits = {*keys.numbers("swiglu_clamp_exp", keys.integer("block_count"))} if has_limits else {0.0}
        if len(limits) != 1 or (limit := limits.pop()) < 0:
            raise LoadError(f"[hy_v4] invalid swiglu_clamp_exp: {sorted(limits)} (expected one number for all layers)")
        spec = experts.spec(unit="clamped" if limit else "gated", limit=limit or 1.0)
        routed = MoE(weights, dim, experts.ffn_dim, experts.n, spec)
        return Together(routed, SharedExpert(weights, dim, shared_dim)) if shared_dim else routed

    def __call__(self, step: Step) -> Tensor:
        x = graph.repeat_heads(self.embedding(step.tokens).heads(1), self.n_stream).merge_heads()
        x = step.run_layers(self.blocks, x)
        return self.head(self.norm(self.joined(select_rows(x, step.logit_rows))))


MODEL = HyV4

# --- checkpoint ---


def _limit(config: Fields) -> list[float]:
    if (limit := config.number("swiglu_limit", 10.0)) <= 0:
        raise UnsupportedError(f"[convert] unsupported 'swiglu_limit': {limit} (expected more than 0)")
    return [limit] * config.integer("num_hidden_layers")


def _types(config: Fields) -> list[bool]:
    """Return the layers with an indexer; the others reuse the previous layer's choice."""
    kinds = config.items("indexer_types")
    return [kind == "full" for kind in kinds] or [
        i == 0 or (i - 1) % 4 == 0 for i in range(config.integer("num_hidden_layers"))
    ]


_LAYER = "model.layers.{i}"
_ATTENTION = f"{_LAYER}.self_attn"
_GLM = deepseek32.HF["GlmMoeDsaForCausalLM"]
HF = {
    "HYV4ForCausalLM": replace(
        _GLM,
        arch="hy_v4",
        keys={
            **_GLM.keys,
            "attention.q_lora_rank": deepseek2.q_rank(1536),
            "attention.indexer.head_count": u32("index_n_heads", default=16),
            "attention.indexer.types": computed("bool[]", _types),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=768),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.827),
            "leading_dense_block_count": computed(
                "u32", lambda config: n_dense(config, config.integer("first_k_dense_replace", 1))
            ),
            "swiglu_clamp_exp": computed("f32[]", _limit),
            "hyper_connection.count": u32("hc_mult", default=4, low=1),
            "hyper_connection.epsilon": f32("hc_eps", default=1e-6),
            "hyper_connection.magnitude": f32("hc_magnitude", default=2.0),
        },
        tensors={
            **{name: source for name, source in _GLM.tensors.items() if "_exps" not in name},
            "blk.{i}.ffn_gate_exps.weight": tensor(f"{_LAYER}.mlp.experts.gate_up_proj", change=half(0)),
            "blk.{i}.ffn_up_exps.weight": tensor(f"{_LAYER}.mlp.experts.gate_up_proj", change=half(1)),
            "blk.{i}.ffn_down_exps.weight": f"{_LAYER}.mlp.experts.down_proj",
            # Published checkpoints rotate neighbouring rows, as files do; transformers 5.24 takes them for halves.
            "blk.{i}.attn_q_b": f"{_ATTENTION}.q_b_proj",
            "blk.{i}.attn_kv_a_mqa": f"{_ATTENTION}.kv_a_proj_with_mqa",
            "blk.{i}.indexer.attn_q_b": f"{_ATTENTION}.indexer.wq_b",
            "blk.{i}.indexer.attn_k": f"{_ATTENTION}.indexer.wk",
            "blk.{i}.indexer.k_norm": f"{_ATTENTION}.indexer.k_norm",
            "blk.{i}.attn_gate": f"{_ATTENTION}.linear_gate",
            "blk.{i}.attn_sinks.weight": f"{_ATTENTION}.learnable_sink_param",
            **{
                f"blk.{{i}}.hc_{ours}_{part}.weight": f"{_LAYER}.hc_{theirs}_layer.hc_pre.hc_{part}"
                for ours, theirs in (("attn", "attn"), ("ffn", "mlp"))
                for part in ("fn", "base", "scale")
            },
            **{f"output_hc_{part}.weight": f"model.hc_head.hc_head_{part}" for part in ("fn", "base", "scale")},
        },
        predicting=None,
        ignored=("model.mtp_layers.*",),
        unused=(*deepseek2.UNUSED, "num_key_value_heads", "learnable_sink_init"),
    )
}
