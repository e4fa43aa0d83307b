"""Granite with windows (IBM 2026): Granite with attention sinks, windows in most layers, experts in larger models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .._native.graph import glu
from ..checkpoints.mapping import (
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    has_windows,
    local_layers,
    u32,
)
from ..checkpoints.mapping.rope import theta_of
from ..errors import LoadError, UnsupportedError
from ..nn import (
    CacheSpec,
    ExpertConfig,
    GatedMLP,
    Keys,
    MoE,
    RopeSpec,
    Step,
    Tensor,
    Together,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
)
from . import granite, llama
from .base import MAX_DIM, Decoder, DenseConfig, Layer
from .granite import MULTIPLIERS, ScaledBlock, no_zeros

ARCHES = ("granite_swa",)


class Attention(granite.Attention):
    """Granite's attention with sinks; ``is_rotated``: with RoPE."""

    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, scale: float, *, is_rotated: bool
    ) -> None:
        super().__init__(config, weights, layer, rotation, scale)
        self.is_rotated = is_rotated
        self.sinks = weights.tensor("attn_sinks.weight", (config.n_head,), vector=True)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head), self.v(x).heads(self.n_kv_head)
        if self.is_rotated:
            q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale, sinks=self.sinks))


class SharedExpert:
    """A gated MLP beside the routed experts, whose gate and up matrix are one tensor."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int) -> None:
        self.gate, self.up = weights.linears("ffn_up_shexp", dim, [ffn_dim, ffn_dim], bias=None)
        self.down = weights.linear("ffn_down_shexp", ffn_dim, dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(glu(self.gate(x), self.up(x), "silu"))


def mlps(keys: Keys, config: DenseConfig) -> Callable[[Weights], Layer]:
    """Return a function that makes a layer's MLP: a gated one, or experts if the file has any."""
    if keys.integer("expert_count", 0) == 0:
        keys.only("expert_count", 0)
        keys.without_effect("expert_used_count")
        return lambda weights: GatedMLP(weights, config.dim, config.ffn_dim)
    experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim)
    shared_dim = keys.integer("expert_shared_feed_forward_length", 0, high=MAX_DIM)

    def mixture(weights: Weights) -> Layer:
        routed = MoE(weights, config.dim, experts.ffn_dim, experts.n, experts.spec())
        return Together(routed, SharedExpert(weights, config.dim, shared_dim)) if shared_dim else routed

    return mixture


class GraniteSwa(Decoder):
    """A multiplier of 0 means the default.  Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        mlp = mlps(keys, config)
        self.embedding_scale = keys.number("embedding_scale", 0.0) or 1.0
        self.logit_scale = keys.number("logit_scale", 1.0)
        if self.logit_scale == 0:
            raise LoadError("[granite_swa] invalid logit_scale: 0")
        residual_scale = keys.number("residual_scale", 0.0) or 1.0
        attention_scale = keys.number("attention.scale", 0.0)
        window = keys.integer("attention.sliding_window", low=1)
        is_local = keys.integers("attention.sliding_window_pattern", config.n_layer, high=1)
        self.windows = [window if local else 0 for local in is_local]
        if keys.has("attention.rope_pattern") and not keys.is_array("attention.rope_pattern"):
            raise LoadError("[granite_swa] attention.rope_pattern is a single value: expected one for each layer")
        is_rotated = keys.integers("attention.rope_pattern", config.n_layer, 1, high=1)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        blocks = [
            ScaledBlock(
                config,
                block,
                Attention(config, block, i, rotation, attention_scale, is_rotated=bool(is_rotated[i])),
                mlp(block),
                residual_scale,
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.embedding_scale, step) * (1.0 / self.logit_scale)


MODEL = GraniteSwa

# --- checkpoint ---


def _pattern(config: Fields) -> Sequence[bool]:
    """Return the layers with windows: those of ``layer_types``, or all but the first of every four."""
    if config.items("layer_types"):
        return local_layers(config, 4)
    return [i % 4 != 0 for i in range(config.integer("num_hidden_layers"))]


def _rotated(config: Fields) -> Sequence[bool] | None:
    """Return the layers with RoPE: those whose base is not 0; all others have the same base."""
    thetas, base = config.items("layer_rope_theta"), theta_of(config)
    if thetas and (len(thetas) != config.integer("num_hidden_layers") or not set(thetas) <= {0, base}):
        raise UnsupportedError(f"[convert] unsupported 'layer_rope_theta': expected 0 or {base} for each layer")
    return [bool(theta) for theta in thetas] or None


def _n_kv_head(config: Fields) -> int:
    if config.is_null("num_key_value_heads"):
        return config.integer("num_attention_heads", low=1)
    return config.integer("num_key_value_heads", 4, low=1)


_DENSE = Checkpoint(
    "granite_swa",
    {
        **llama.KEYS,
        **MULTIPLIERS,
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "attention.head_count_kv": computed("u32", _n_kv_head),
        "attention.sliding_window": u32("sliding_window", default=128, low=1),
        "attention.sliding_window_pattern": computed("bool[]", _pattern),
        "attention.rope_pattern": computed("bool[]", _rotated),
    },
    {**llama.TENSORS, "blk.{i}.attn_sinks.weight": "model.layers.{i}.self_attn.sinks"},
    fixed={"hidden_act": SILU},
    checks=(no_zeros, has_windows),
    tied=True,
    unused=("attention_bias", "mlp_bias"),
)
_LAYER = "model.layers.{i}"
_MOE = f"{_LAYER}.block_sparse_moe"
HF = {
    "GraniteSWAForCausalLM": _DENSE,
    "GraniteMoeSWAForCausalLM": replace(
        _DENSE,
        keys={
            **_DENSE.keys,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
            "attention.head_count_kv": u32("num_key_value_heads", "num_attention_heads", low=1),
            "expert_count": u32("num_local_experts", default=8, low=1),
            "expert_used_count": u32("num_experts_per_tok", default=2),
            "expert_shared_feed_forward_length": u32("shared_intermediate_size", default=0),
        },
        tensors={
            **{name: source for name, source in _DENSE.tensors.items() if ".ffn_" not in name or "norm" in name},
            # Granite's names, and those of newer checkpoints.
            "blk.{i}.ffn_gate_inp": f"{_MOE}.router.layer",
            "blk.{i}.ffn_gate_up_exps": f"{_MOE}.input_linear",
            "blk.{i}.ffn_down_exps": f"{_MOE}.output_linear",
            "blk.{i}.ffn_gate_inp.weight": f"{_MOE}.router.weight",
            "blk.{i}.ffn_gate_up_exps.weight": f"{_MOE}.experts.gate_up_proj",
            "blk.{i}.ffn_down_exps.weight": f"{_MOE}.experts.down_proj",
            "blk.{i}.ffn_up_shexp": f"{_LAYER}.shared_mlp.input_linear",
            "blk.{i}.ffn_down_shexp": f"{_LAYER}.shared_mlp.output_linear",
        },
        tied=False,
    ),
}
