"""Llama 4, text (Meta 2025): chunked attention, full attention without RoPE in every fourth layer, experts.

Full attention has a temperature that grows with the position.  Routing weights multiply the experts' inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    computed,
    f32,
    rope_keys,
    tensor,
    u32,
    with_pictures,
)
from ..errors import UnsupportedError
from ..nn import (
    CacheSpec,
    ExpertConfig,
    GatedMLP,
    Keys,
    MoE,
    MoeSpec,
    RopeSpec,
    SharedExpert,
    Step,
    Tensor,
    Together,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
    scale_by_position,
    unit_norm,
)
from .base import Block, Decoder, DenseConfig, Layer, local_layers

ARCHES = ("llama4",)
PERIOD = 4  # every fourth layer has full attention
LENGTH = 8192  # default length of a chunk, and of a step of the temperature
WITHOUT_NORMS = 128  # the number of experts of the model without query and key norms


class Attention(ABC):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale = config.head_dim**-0.5
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    @abstractmethod
    def turn(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Return queries and keys with positions applied."""

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.turn(self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head), step)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class ChunkAttention(Attention):
    """Attention within chunks, with RoPE.  ``eps``: of query and key norms, which have no weights; 0: no norms."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, eps: float) -> None:
        super().__init__(config, weights, layer)
        self.rotation, self.eps = rotation, eps

    def turn(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        return (unit_norm(q, self.eps), unit_norm(k, self.eps)) if self.eps else (q, k)


class GlobalAttention(Attention):
    """Full attention without RoPE; ``beta`` and ``length`` are the temperature's."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, beta: float, length: int) -> None:
        super().__init__(config, weights, layer)
        self.beta, self.length = beta, length

    def turn(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        return scale_by_position(q, step.positions, beta=self.beta, n_ctx=self.length, offset=1), k


class Llama4(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", normalize=False)
        spec = MoeSpec(
            n_used=experts.n_used,
            gating=experts.gating,
            normalize=experts.normalize,
            scale=experts.scale,
            weighs_input=True,
        )
        period = keys.integer("interleave_moe_layer_step", low=1)
        self.chunk = keys.integer("attention.chunk_size", LENGTH, low=1)
        beta = keys.number("attention.temperature_scale", 0.1)
        length = keys.integer("attention.temperature_length", LENGTH, low=1)
        self.is_local = [(i + 1) % PERIOD != 0 for i in range(config.n_layer)]
        if local_layers(keys, config.n_layer, PERIOD) != self.is_local:
            key = keys.full("attention.sliding_window_pattern")
            raise UnsupportedError(f"[llama4] unsupported '{key}': expected {PERIOD}, the period of layers with RoPE")
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )

        def attention(i: int, block: Weights) -> Attention:
            if self.is_local[i]:
                return ChunkAttention(config, block, i, rotation, 0.0 if experts.n == WITHOUT_NORMS else config.eps)
            return GlobalAttention(config, block, i, beta, length)

        def mlp(i: int, block: Weights) -> Layer:
            if (i + 1) % period:
                return GatedMLP(block, config.dim, config.ffn_dim)
            return Together(
                MoE(block, config.dim, experts.ffn_dim, experts.n, spec),
                SharedExpert(block, config.dim, experts.ffn_dim),
            )

        blocks = [
            Block(config, block, attention(i, block), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        config = self.config
        return [
            CacheSpec(
                n_kv_head=config.n_kv_head,
                head_dim=config.head_dim,
                v_head_dim=config.v_head_dim,
                chunk=self.chunk if local else 0,
            )
            for local in self.is_local
        ]


MODEL = Llama4

# --- checkpoint ---


def _layers_are_usual(config: Fields) -> None:
    n_layer, step = config.integer("num_hidden_layers"), config.integer("interleave_moe_layer_step", 1, low=1)
    local = [int((i + 1) % PERIOD != 0) for i in range(n_layer)]
    kinds = ["chunked_attention" if one else "full_attention" for one in local]
    if config.integer("no_rope_layer_interval", PERIOD) != PERIOD and not config.items("no_rope_layers"):
        raise UnsupportedError(f"[convert] unsupported 'no_rope_layer_interval': expected {PERIOD}")
    if config.items("no_rope_layers") not in ([], local):
        raise UnsupportedError("[convert] unsupported 'no_rope_layers': expected 0 for every fourth layer, else 1")
    if config.items("layer_types") not in ([], kinds):
        raise UnsupportedError("[convert] unsupported 'layer_types': expected full_attention for every fourth layer")
    if config.has("moe_layers") and config.items("moe_layers") != list(range(step - 1, n_layer, step)):
        raise UnsupportedError(f"[convert] 'moe_layers' contradicts 'interleave_moe_layer_step' {step}")
    has_norms = config.integer("num_local_experts", 16) != WITHOUT_NORMS
    if config.flag("use_qk_norm", True) != has_norms:
        raise UnsupportedError(
            f"[convert] unsupported 'use_qk_norm': {not has_norms} (expected {has_norms} for this number of experts)"
        )


def _chunk(config: Fields) -> int | None:
    if config.is_null("attention_chunk_size"):
        raise UnsupportedError("[convert] unsupported 'attention_chunk_size': null (expected a number)")
    chunk = config.integer("attention_chunk_size", LENGTH, low=1)
    return None if chunk == LENGTH else chunk


def _length(config: Fields) -> int | None:
    length = config.integer("floor_scale", LENGTH, low=1)
    return None if length == LENGTH else length


def _beta(config: Fields) -> float | None:
    is_tuned = config.value("attn_temperature_tuning")  # true, or 4 in old files
    beta = config.number("attn_scale", 0.1) if is_tuned or is_tuned is None else 0.0
    return None if beta == 0.1 else beta


def _half(which: int) -> Change:
    """Take the gate or up half of every expert; matrices are stored ``[in, out]``."""

    def change(x: Array, config: Fields) -> Array:
        n = x.shape[-1] // 2
        half: Array = x[..., which * n : (which + 1) * n].swapaxes(1, 2).copy()
        return half

    return change


def _turned(x: Array, config: Fields) -> Array:
    turned: Array = x.swapaxes(1, 2).copy()
    return turned


_MLP = "model.layers.{i}.feed_forward"
_TEXT = Checkpoint(
    "llama4",
    {
        **DECODER_KEYS,
        "context_length": u32("max_position_embeddings", default=131072),
        "feed_forward_length": u32("intermediate_size_mlp", default=16384),
        "attention.key_length": u32("head_dim", default=128),
        "attention.value_length": u32("head_dim", default=128),
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "attention.chunk_size": computed("u32", _chunk),
        "attention.temperature_length": computed("u32", _length),
        "attention.temperature_scale": computed("f32", _beta),
        "expert_count": u32("num_local_experts", default=16),
        "expert_used_count": u32("num_experts_per_tok", default=1),
        "expert_feed_forward_length": u32("intermediate_size", default=8192),
        "interleave_moe_layer_step": u32("interleave_moe_layer_step", default=1, low=1),
    },
    {
        **DECODER_TENSORS,
        **{f"blk.{{i}}.ffn_{name}": f"{_MLP}.{name}_proj" for name in ("gate", "up", "down")},
        **{f"blk.{{i}}.ffn_{name}_shexp": f"{_MLP}.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
        "blk.{i}.ffn_gate_inp": f"{_MLP}.router",
        "blk.{i}.ffn_gate_exps.weight": tensor(f"{_MLP}.experts.gate_up_proj", change=_half(0)),
        "blk.{i}.ffn_up_exps.weight": tensor(f"{_MLP}.experts.gate_up_proj", change=_half(1)),
        "blk.{i}.ffn_down_exps.weight": tensor(f"{_MLP}.experts.down_proj", change=_turned),
    },
    fixed={"hidden_act": SILU},
    checks=(_layers_are_usual,),
    rope=lambda config: rope_keys(config, 500000.0),
    unused=("attention_bias", "for_llm_compressor", "router_jitter_noise"),
)
HF = {"Llama4ForCausalLM": _TEXT, "Llama4ForConditionalGeneration": with_pictures(_TEXT)}
