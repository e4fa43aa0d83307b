"""OLMo Hybrid (OLMo team 2026): gated delta rule (Yang et al. 2024), OLMo 2 attention, in some layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    flag,
    layers_of_type,
    rope_keys,
    squeezed,
    tensor,
    u32,
)
from ..checkpoints.mapping.rope import Entry, rope_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from . import olmo2
from .base import Decoder, DenseConfig, Mixer, PostNormBlock
from .qwen35 import Block, DeltaConfig, GatedDelta, unit

if TYPE_CHECKING:
    from ..checkpoints.mapping import Array

ARCHES = ("olmo_hybrid",)
GATED_EPS = 1e-5  # The gated norm ignores rms_norm_eps.


class Attention(olmo2.Attention):
    """OLMo 2's attention; ``rotation`` None: without RoPE."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec | None) -> None:
        super().__init__(
            config, weights, layer, rotation or RopeSpec(n_dims=config.n_rot, layout="half", freq_base=1.0)
        )
        self.is_rotated = rotation is not None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.q_norm(self.q(x)).heads(self.n_head), self.k_norm(self.k(x)).heads(self.n_kv_head)
        if self.is_rotated:
            q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class Delta(GatedDelta):
    """The gated delta rule, with write strengths of up to ``strongest``: 2 allows states to change sign."""

    tiled = False

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, delta: DeltaConfig, strongest: float) -> None:
        super().__init__(replace(config, eps=GATED_EPS), weights, layer, delta)
        self.strongest = strongest

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        delta = self.delta
        qkv = graph.conv_state(self.qkv(x), self.conv, None, layer=self.layer, state=0, silu=True)
        q = unit(graph.slice(qkv, 0, 0, delta.n_keys).heads(delta.n_key_head), delta.n_key) * delta.n_key**-0.5
        k = unit(graph.slice(qkv, 0, delta.n_keys, 2 * delta.n_keys).heads(delta.n_key_head), delta.n_key)
        v = graph.slice(qkv, 0, 2 * delta.n_keys, delta.n_channels).heads(delta.n_head)
        beta, alpha = self.beta_alpha(x)
        g = graph.multiply_weight(graph.softplus(graph.add_weight(alpha, self.dt_bias)), self.a)
        strength = graph.sigmoid(beta) * self.strongest
        y = graph.gated_delta(q, k, v, g, strength, layer=self.layer, state=1, tiled=self.tiled)
        return self.out(graph.glu(self.z(x), self.norm(y).merge_heads(), "silu"))


class OlmoHybrid(Decoder):
    """Layers with the delta rule have pre-norms, layers with attention post-norms."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.delta = delta = DeltaConfig.read(keys)
        if delta.n_key_head != delta.n_head:
            raise UnsupportedError(f"[{keys.arch}] ssm.group_count {delta.n_key_head}: expected {delta.n_head}")
        self.is_recurrent = [bool(one) for one in keys.integers("attention.recurrent_layers", config.n_layer, high=1)]
        strongest = 2.0 if keys.flag("ssm.negative_eigenvalues", False) else 1.0
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half") if keys.has("rope.freq_base") else None

        def block(i: int, layer: Weights) -> Mixer:
            mlp = GatedMLP(layer, config.dim, config.ffn_dim)
            if self.is_recurrent[i]:
                return Block(config, layer, Delta(config, layer, i, delta, strongest), mlp)
            return PostNormBlock(config, layer, Attention(config, layer, i, rotation), mlp)

        super().__init__(config, weights, [block(i, layer) for i, layer in enumerate(weights.blocks(config.n_layer))])

    def cache(self) -> list[CacheSpec]:
        return self.delta.caches(self.is_recurrent, self.config.cache())


MODEL = OlmoHybrid

# --- checkpoint ---


def _recurrent(config: Fields) -> list[bool]:
    if found := layers_of_type(config, "linear_attention"):
        return found
    n = config.integer("num_hidden_layers")
    return [i % 4 != 3 and not (n < 4 and i == n - 1) for i in range(n)]


def _heads(config: Fields) -> int:
    n = config.integer("num_attention_heads", low=1)
    n_value = config.integer("linear_num_value_heads", n, low=1)
    if (n_key := config.integer("linear_num_key_heads", n, low=1)) != n_value:
        raise UnsupportedError(f"[convert] unsupported 'linear_num_key_heads': {n_key} (expected {n_value})")
    return n_value


def _key_dim(config: Fields) -> int:
    own = int(0.75 * config.integer("hidden_size") / _heads(config))
    return config.integer("linear_key_head_dim", own, low=1)


def _inner(config: Fields) -> int:
    return _heads(config) * config.integer("linear_value_head_dim", 2 * _key_dim(config), low=1)


def _decay(x: Array, config: Fields) -> Array:
    import numpy as np

    decays: Array = np.negative(np.exp(x))
    return decays


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; without a base there is no RoPE, as in published models."""
    rope_fields = rope_of(config)
    if rope_fields.is_null("rope_theta") or (not config.has("rope_parameters") and config.is_null("rope_theta")):
        rope_fields.read(("rope_type", "rope_theta"))
        return
    yield from rope_keys(config)


_LAYER = "model.layers.{i}"
_DELTA = f"{_LAYER}.linear_attn"
HF = {
    "OlmoHybridForCausalLM": Checkpoint(
        "olmo_hybrid",
        {
            **DECODER_KEYS,
            "attention.recurrent_layers": computed("bool[]", _recurrent),
            "ssm.conv_kernel": u32("linear_conv_kernel_dim", default=4),
            "ssm.state_size": computed("u32", _key_dim),
            "ssm.group_count": computed("u32", _heads),
            "ssm.time_step_rank": computed("u32", _heads),
            "ssm.inner_size": computed("u32", _inner),
            "ssm.negative_eigenvalues": flag("linear_allow_neg_eigval", default=True),
        },
        {
            **{
                name: source for name, source in DECODER_TENSORS.items() if not name.endswith(("attn_norm", "ffn_norm"))
            },
            # The norms of layers with the delta rule have other names in published checkpoints.
            "blk.{i}.attn_norm": f"{_LAYER}.attention_layer_norm",
            "blk.{i}.attn_norm.weight": f"{_LAYER}.input_layernorm.weight",
            "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.post_attention_norm.weight": f"{_LAYER}.feedforward_layer_norm.weight",
            "blk.{i}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
            "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
            "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
            "blk.{i}.attn_qkv": tensor(f"{_DELTA}.q_proj", f"{_DELTA}.k_proj", f"{_DELTA}.v_proj"),
            "blk.{i}.attn_gate": f"{_DELTA}.g_proj",
            "blk.{i}.ssm_conv1d": tensor(
                f"{_DELTA}.q_conv1d", f"{_DELTA}.k_conv1d", f"{_DELTA}.v_conv1d", change=squeezed
            ),
            "blk.{i}.ssm_dt.bias": f"{_DELTA}.dt_bias",
            "blk.{i}.ssm_a": tensor(f"{_DELTA}.A_log", change=_decay),
            "blk.{i}.ssm_beta": f"{_DELTA}.b_proj",
            "blk.{i}.ssm_alpha": f"{_DELTA}.a_proj",
            "blk.{i}.ssm_norm": f"{_DELTA}.o_norm",
            "blk.{i}.ssm_out": f"{_DELTA}.o_proj",
        },
        fixed={"hidden_act": SILU},
        rope=_rope,
        unused=("attention_bias", "linear_a_log_*", "linear_dt_*"),
    )
}
