"""Laguna (poolside 2026): Qwen3's attention with a softplus gate, more heads in windowed layers, sigmoid routing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .._native.graph import multiply_broadcast, softplus
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    factor,
    has_windows,
    n_dense,
    rope_keys,
    u32,
)
from ..checkpoints.mapping.rope import Entry, kind_of, rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import (
    ROUTING,
    CacheSpec,
    ExpertConfig,
    Keys,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    rope_spec,
)
from . import qwen3
from .base import MAX_DIM, MAX_HEADS, MAX_LAYERS, Block, Decoder, DenseConfig, dense_then_experts, local_layers
from .mellum import pattern_of

ARCHES = ("laguna",)
PERIOD = 4  # every fourth layer, beginning with the first, has full attention


class Attention(qwen3.Attention):
    """Multiplies the heads' outputs by the softplus of a projection of the input, per head or per element."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        n = weights.n_rows("attn_gate.weight")
        self.by_head = n == config.n_head
        self.gate = weights.linear("attn_gate", config.dim, n if self.by_head else config.n_head * config.v_head_dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y, gate = self.attended(x, step), softplus(self.gate(x))
        if not self.by_head:
            return self.o(y * gate)
        return self.o(multiply_broadcast(y.heads(self.n_head), gate.heads(self.n_head)).merge_heads())


class Laguna(Decoder):
    """RoPE scaling applies to the full-attention layers only."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        n_heads = keys.integers(
            "attention.head_count", keys.integer("block_count", high=MAX_LAYERS), low=1, high=MAX_HEADS
        )
        config = DenseConfig.read(keys, n_vocab, n_head=max(n_heads, default=1))
        sizes = [replace(config, n_head=n) for n in n_heads]
        for each in sizes:
            each.check()
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", normalize=False, reads=ROUTING)
        n_shared = keys.integer("expert_shared_count", 1, low=1, high=64)
        shared_dim = keys.integer("expert_shared_feed_forward_length", n_shared * experts.ffn_dim, low=1, high=MAX_DIM)
        n_dense_layers = keys.integer("leading_dense_block_count")
        window = keys.integer("attention.sliding_window", 0)
        local = [window > 0 and one for one in local_layers(keys, config.n_layer, PERIOD, last=False)]
        self.windows = [window if one else 0 for one in local]
        rotations = [rope_spec(keys, n_dims=config.n_rot, layout="half"), nearby(keys, config)]
        mlp = dense_then_experts(config, experts, shared_dim, n_dense_layers)
        blocks = [
            Block(config, block, Attention(sizes[i], block, i, rotations[local[i]]), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


def nearby(keys: Keys, config: DenseConfig) -> RopeSpec:
    """Read the rotation of windowed layers."""
    base = keys.number("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))
    n_rot = keys.integer("rope.dimension_count_swa", config.n_rot, low=2, high=config.head_dim)
    if base <= 0 or n_rot % 2:
        raise LoadError(f"[{keys.arch}] invalid rope.freq_base_swa {base} or dimension_count_swa {n_rot}")
    return RopeSpec(n_dims=n_rot, layout="half", freq_base=base)


MODEL = Laguna

# --- checkpoint ---


def _n_heads(config: Fields) -> list[int]:
    """Return each layer's number of heads; a list of all layers takes precedence over a number."""
    n_layer, heads = config.integer("num_hidden_layers"), config.items("num_attention_heads_per_layer")
    if not heads:
        return [config.integer("num_attention_heads", low=1)] * n_layer
    config.read(("num_attention_heads",))
    numbers = [n for n in heads if isinstance(n, int) and n > 0]
    if len(numbers) != n_layer or len(heads) != n_layer:
        raise LoadError(f"[convert] invalid 'num_attention_heads_per_layer': expected {n_layer} positive integers")
    return numbers


def _window(config: Fields) -> int | None:
    if not any(pattern_of(config)):
        config.read(("sliding_window",))
        return None
    has_windows(config)
    return config.integer("sliding_window", 512, low=1)


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys of both kinds of layers."""
    kinds, head_dim = config.inner("rope_parameters"), config.integer("head_dim", 128)
    if config.has("rope_scaling") or (config.has("rope_parameters") and not kinds.has("full_attention")):
        raise UnsupportedError("[convert] unsupported 'rope_parameters': expected one entry for each kind of layer")
    if not kinds.has("sliding_attention") and any(pattern_of(config)) and config.has("rope_parameters"):
        raise UnsupportedError("[convert] 'rope_parameters' has no entry for sliding_attention")
    local, default_part = kinds.inner("sliding_attention"), 1.0 if config.has("rope_parameters") else 0.5
    if kind_of(local) != "default" or kind_of(rope_of(config)) == "llama3":
        raise UnsupportedError(
            f"[convert] unsupported rope scaling: '{kind_of(local)}' for sliding_attention, "
            f"'{kind_of(rope_of(config))}' for full_attention (expected default, and default or yarn)"
        )
    yield "rope.freq_base_swa", "f32", local.number("rope_theta", 10000.0)
    yield "rope.dimension_count_swa", "u32", int(head_dim * local.number("partial_rotary_factor", 1.0))
    part = rope_of(config).number("partial_rotary_factor", default_part)
    yield "rope.dimension_count", "u32", int(head_dim * part)
    yield from rope_keys(config, 500000.0)


HF = {
    "LagunaForCausalLM": Checkpoint(
        "laguna",
        {
            **DECODER_KEYS,
            "attention.head_count": computed("u32[]", _n_heads),
            "attention.head_count_kv": u32("num_key_value_heads", default=8, low=1),
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.sliding_window": computed("u32", _window),
            "attention.sliding_window_pattern": computed("bool[]", pattern_of),
            "expert_count": u32("num_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=512),
            "expert_shared_feed_forward_length": u32("shared_expert_intermediate_size", default=512),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_norm": computed("bool", lambda config: True),
            "expert_weights_scale": factor("moe_routed_scaling_factor", default=1.0),
            "leading_dense_block_count": computed("u32", lambda config: n_dense(config, 1)),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **qwen3.QK_NORMS,
            "blk.{i}.attn_gate": "model.layers.{i}.self_attn.g_proj",
            "blk.{i}.exp_probs_b.bias": "model.layers.{i}.mlp.experts.e_score_correction_bias",
            **{
                f"blk.{{i}}.ffn_{x}_shexp": f"model.layers.{{i}}.mlp.shared_expert.{x}_proj"
                for x in ("gate", "up", "down")
            },
        },
        fixed={
            "hidden_act": SILU,
            "attention_bias": (False,),
            "gating": (True, "per-head", "per-element"),  # the checkpoint's tensors show which
            "moe_router_logit_softcapping": (0, 0.0),
            "moe_apply_router_weight_on_input": (False,),
        },
        rope=_rope,
        unused=("gating_types",),
    )
}
