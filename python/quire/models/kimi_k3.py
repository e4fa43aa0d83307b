"""Kimi K3 (Moonshot AI 2026), text: Kimi Linear with gates, latent experts, and layers that mix earlier residuals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._native import graph
from ..checkpoints.mapping import (
    Array,
    Fields,
    Source,
    computed,
    f32,
    flag,
    product,
    tensor,
    u32,
    with_pictures,
)
from ..errors import UnsupportedError
from ..nn import ROUTING, ExpertConfig, Keys, LatentAttention, Step, Tensor, Weights, select_rows
from ..nn.layers import unit_norm
from . import bailingmoe3, base, deepseek2, kimi_linear
from .base import MAX_DIM, DenseConfig, Layer

ARCHES = ("kimi-k3",)


class DeltaAttention(kimi_linear.BoundedDeltaAttention):
    """The gate has a matrix of its own."""

    def product_of_two(self, name: str, dim: int, weights: Weights) -> Layer:
        if name == "ssm_g":
            return weights.linear(name, dim, self.n_head * self.size)
        return super().product_of_two(name, dim, weights)


class GatedLatentAttention(LatentAttention):
    gate: Layer | None = None

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        y = y.merge_heads()
        return y if self.gate is None else y * graph.sigmoid(self.gate(x))


class CappedMLP:
    """A gated MLP, ``down(soft_cap(gate) * sigmoid(gate) * soft_cap(up))``."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int, caps: tuple[float, float], end: str = "") -> None:
        self.gate, self.up = (weights.linear(f"ffn_{one}{end}", dim, ffn_dim) for one in ("gate", "up"))
        self.down, self.caps = weights.linear(f"ffn_down{end}", ffn_dim, dim), caps

    def __call__(self, x: Tensor) -> Tensor:
        gate, (cap, up_cap) = self.gate(x), self.caps
        return self.down(graph.soft_cap(gate, cap) * graph.sigmoid(gate) * graph.soft_cap(self.up(x), up_cap))


class LatentExperts:
    """Experts that read and write rows of a smaller width, and shared ones that do not."""

    def __init__(
        self, weights: Weights, config: DenseConfig, latent: int, experts: ExpertConfig, caps: tuple[float, float]
    ) -> None:
        dim, n, ffn_dim, width = config.dim, experts.n, experts.ffn_dim, latent or config.dim
        self.router = weights.linear("ffn_gate_inp", dim, n)
        self.bias = weights.tensor("exp_probs_b.bias", (n,), vector=True)
        self.gate, self.up = weights.gates_and_ups(n, ffn_dim, width)
        self.down = weights.tensor("ffn_down_exps.weight", (n, width, ffn_dim))
        self.into: Layer | None = weights.linear("ffn_routed_down", dim, latent) if latent else None
        self.out: Layer | None = weights.linear("ffn_routed_up", latent, dim) if latent else None
        has_norm = latent and weights.has("ffn_routed_norm.weight")
        self.norm: Layer | None = weights.norm("ffn_routed_norm", latent, config.eps) if has_norm else None
        self.spec = experts.spec(unit="tanh_capped", alpha=caps[0], limit=caps[1])

    def __call__(self, x: Tensor) -> Tensor:
        y = x if self.into is None else self.into(x)
        y = graph.moe(y, self.router(x), self.gate, self.up, self.down, self.spec, selection_bias=self.bias)
        for layer in (self.norm, self.out):
            y = y if layer is None else layer(y)
        return y


class Residuals:
    """The residuals with which earlier groups of layers ended: ``mix`` weighs them by scores of their directions.

    Every mix has a vector of scores, and all of them are computed when a residual is added.
    """

    def __init__(self, weights: Weights, names: list[str], dim: int, eps: float) -> None:
        self.eps = eps
        vectors = np.stack([weights.numbers(name, (dim,)) for name in names])
        self.all = weights.computed("attn_res_scores", vectors)
        self.each = [weights.computed(f"{name}.row", vector[None]) for name, vector in zip(names, vectors, strict=True)]
        self.rows: Tensor | None = None  # [tokens, n, dim]
        self.scores: Tensor | None = None  # [tokens, n, mixes]

    def clear(self) -> None:
        self.rows = self.scores = None

    def add(self, x: Tensor) -> None:
        row, scores = x.heads(1), graph.linear(unit_norm(x, self.eps), self.all).heads(1)
        self.rows = row if self.rows is None else graph.concat(self.rows, row, 1)
        self.scores = scores if self.scores is None else graph.concat(self.scores, scores, 1)

    def mix(self, x: Tensor, i: int) -> Tensor:
        """Return the mean of ``x`` and the earlier residuals by the softmax of their scores."""
        if self.rows is None or self.scores is None:
            return x
        n = self.rows.shape[1]
        assert isinstance(n, int)
        own = graph.linear(unit_norm(x, self.eps), self.each[i])
        earlier = graph.slice(self.scores, 0, i, i + 1).merge_heads()
        parts = graph.softmax(graph.concat(earlier, own, 0))
        return graph.hyper_input(self.rows, parts) + graph.multiply_broadcast(x, graph.slice(parts, 0, n, n + 1))


class Block(base.Block):
    residuals: Residuals
    layer: int
    is_first: bool  # in a group of layers

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.residuals.mix(x, 2 * self.layer)
        if self.is_first:
            self.residuals.add(x)
        y = self.attention(self.attn_norm(y), step)
        x = y if self.is_first else x + y
        return x + self.mlp(self.ffn_norm(self.residuals.mix(x, 2 * self.layer + 1)))


class KimiK3(kimi_linear.KimiLinear):
    delta, latent, block, reads = DeltaAttention, GatedLatentAttention, Block, ROUTING

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        super().__init__(keys, weights, n_vocab)
        config = self.config
        period = keys.integer("attn_res.block_size", low=1)
        bound = kimi_linear.read_bound(keys)
        names = [f"blk.{i}.{x}_res_score.weight" for i in range(config.n_layer) for x in ("attn", "ffn")]
        self.residuals = Residuals(weights, [*names, "output_res_score.weight"], config.dim, config.eps)
        for i, (block, layer) in enumerate(zip(self.blocks, weights.blocks(config.n_layer), strict=True)):
            assert isinstance(block, Block)
            block.residuals, block.layer, block.is_first = self.residuals, i, i % period == 0
            mixer = block.attention
            if isinstance(mixer, DeltaAttention):
                mixer.bound = bound
            elif isinstance(mixer, GatedLatentAttention) and layer.has("attn_gate.weight"):
                mixer.gate = layer.linear("attn_gate", config.dim, config.n_head * self.sizes.v_dim)

    def mlps(
        self, keys: Keys, config: DenseConfig, experts: ExpertConfig, shared_dim: int, n_dense: int
    ) -> Callable[[int, Weights], Layer]:
        latent = keys.integer("expert_latent_length", 0, high=MAX_DIM)
        caps = keys.number("activation.situ_beta"), keys.number("activation.situ_linear_beta")
        if min(caps) <= 0:
            raise UnsupportedError(f"[kimi-k3] unsupported activation.situ_beta {caps[0]}, situ_linear_beta {caps[1]}")

        def mlp(i: int, weights: Weights) -> Layer:
            if i < n_dense:
                return CappedMLP(weights, config.dim, config.ffn_dim, caps)
            routed = LatentExperts(weights, config, latent, experts, caps)
            if not shared_dim:
                return routed
            shared = CappedMLP(weights, config.dim, shared_dim, caps, "_shexp")
            return lambda x: routed(x) + shared(x)

        return mlp

    def logits(self, x: Tensor, step: Step) -> Tensor:
        self.residuals.clear()
        x = step.run_layers(self.blocks, x)
        x = self.residuals.mix(x, 2 * self.config.n_layer)
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = KimiK3

# --- checkpoint ---


def _flat(x: Array, config: Fields) -> Array:
    return x.reshape(-1)


def _bound(config: Fields) -> float | None:
    inner = config.inner("linear_attn_config")
    return inner.number("gate_lower_bound") if inner.has("gate_lower_bound") else None


def _whole_gate(config: Fields) -> None:
    if not config.inner("linear_attn_config").flag("use_full_rank_gate", False):
        raise UnsupportedError("[convert] unsupported 'use_full_rank_gate' of linear_attn_config: false")


class _K3(bailingmoe3.OneGate):
    gate, beside = "ssm_g.weight", "f_a_proj"


def _score(name: str) -> Source:
    return product(f"{name}_norm", f"{name}_proj", change=_flat)


_LAYER = "model.layers.{i}"
_ATTENTION, _MOE = f"{_LAYER}.self_attn", f"{_LAYER}.block_sparse_moe"
_LINEAR = kimi_linear.HF["KimiLinearForCausalLM"]
_OTHERS = ("ssm_g_a", "ssm_g_b", ".ffn_gate.weight", ".ffn_up.weight", ".ffn_down.weight")  # other names here
_TEXT = _K3(
    "kimi-k3",
    {
        **{name: key for name, key in _LINEAR.keys.items() if name != "attention.latent_norm_rms_epsilon"},
        "attention.q_lora_rank": deepseek2.q_rank(0),
        "kda.gate_lower_bound": computed("f32", _bound),
        "expert_weights_norm": flag("moe_renormalize", default=True),
        "expert_latent_length": u32("routed_expert_hidden_size", default=None),
        "activation.situ_beta": f32("activation_situ_beta"),
        "activation.situ_linear_beta": f32("activation_situ_linear_beta"),
        "attn_res.block_size": u32("attn_res_block_size", low=1),
    },
    {
        **{name: source for name, source in _LINEAR.tensors.items() if not name.endswith(_OTHERS)},
        "blk.{i}.ssm_g": f"{_ATTENTION}.g_proj",
        "blk.{i}.attn_gate": f"{_ATTENTION}.g_proj",
        "blk.{i}.ssm_a": tensor(f"{_ATTENTION}.A_log", change=kimi_linear.rate_of_log),
        **{f"blk.{{i}}.ffn_routed_{x}": f"{_MOE}.routed_expert_{x}_proj" for x in ("down", "up")},
        "blk.{i}.ffn_routed_norm": f"{_MOE}.routed_expert_norm",
        "blk.{i}.attn_res_score": _score(f"{_LAYER}.self_attention_res"),
        "blk.{i}.ffn_res_score": _score(f"{_LAYER}.mlp_res"),
        "output_res_score": _score("model.output_attn_res"),
    },
    fixed={
        **{name: values for name, values in _LINEAR.fixed.items() if name != "q_lora_rank"},
        "hidden_act": ("situ",),
        "topk_method": ("noaux_tc",),
    },
    checks=(*_LINEAR.checks, _whole_gate),
    rope=None,
    unused=(*_LINEAR.unused, "latent_moe_use_norm", "mla_use_output_gate"),
)
HF = {"KimiK3ForConditionalGeneration": replace(with_pictures(_TEXT), ignored=("*vision_tower.*", "*mm_projector.*"))}
