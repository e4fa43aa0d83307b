"""Maple (Deepgrove 2026): Qwen3 with clamped experts; layers have windows and partial RoPE, or no RoPE."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    layers_of_type,
    rope_keys,
    u32,
)
from ..checkpoints.mapping.rope import Entry, partial_rotary
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, ExpertConfig, Keys, MoE, MoeSpec, RopeSpec, Step, Tensor, Weights, rope_spec
from . import qwen3
from .base import Block, Decoder, DenseConfig

ARCHES = ("maple",)
LIMIT = 7.0  # limit of the experts' activations, for files without the key


class Attention(qwen3.Attention):
    """``is_local``: with RoPE."""

    is_local = True

    def attended(self, x: Tensor, step: Step) -> Tensor:
        if self.is_local:
            return super().attended(x, step)
        q, k = self.q_norm(self.q(x).heads(self.n_head)), self.k_norm(self.k(x).heads(self.n_kv_head))
        return step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale)


class Maple(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer)
        window = keys.integer("attention.sliding_window", low=1)
        local = [bool(one) for one in keys.integers("attention.sliding_window_pattern", config.n_layer, high=1)]
        self.windows = [window if one else 0 for one in local]
        base = keys.number("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=base)
        has_limits = keys.has("swiglu_clamp_exp")
        limits = keys.numbers("swiglu_clamp_exp", config.n_layer) if has_limits else [LIMIT] * config.n_layer
        if min(limits) < 0:
            raise LoadError(f"[maple] negative swiglu_clamp_exp: {min(limits)}")

        def make_block(i: int, block: Weights, rotation: RopeSpec) -> Block:
            attention = Attention(config, block, i, rotation)
            attention.is_local = local[i]
            spec = MoeSpec(n_used=experts.n_used, unit="clipped" if limits[i] else "gated", limit=limits[i] or 1.0)
            return Block(config, block, attention, MoE(block, config.dim, experts.ffn_dim, experts.n, spec))

        blocks = [make_block(i, block, rotation) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Maple

# --- checkpoint ---


def _pattern(config: Fields) -> list[bool]:
    if not (local := layers_of_type(config, "sliding_attention")):
        raise UnsupportedError("[convert] missing 'layer_types': expected the kind of each layer")
    return local


def _n_rot(config: Fields) -> int:
    n = config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
    return partial_rotary(config, config.integer("head_dim", n, low=1))


def _rope(config: Fields) -> Iterator[Entry]:
    for name, kind, value in rope_keys(config):
        if name.startswith("rope.scaling"):
            raise UnsupportedError(f"[convert] unsupported rope scaling: '{name}' {value}")
        yield name, kind, value


HF = {
    "MapleForCausalLM": Checkpoint(
        "maple",
        {
            **DECODER_KEYS,
            "attention.sliding_window": u32("sliding_window", low=1),
            "attention.sliding_window_pattern": computed("bool[]", _pattern),
            "rope.dimension_count": computed("u32", _n_rot),
            "expert_count": u32("num_experts", low=1),
            "expert_used_count": u32("num_experts_per_tok"),
            "expert_feed_forward_length": u32("moe_intermediate_size"),
            # The publisher's code has no field for it.
            "swiglu_clamp_exp": computed("f32[]", lambda config: [LIMIT] * config.integer("num_hidden_layers")),
        },
        {**DECODER_TENSORS, **EXPERT_TENSORS, **qwen3.QK_NORMS},
        fixed={
            "hidden_act": SILU,
            "norm_topk_prob": (True, None),
            "num_shared_experts": (0, None),
            "nope_on_global_attention": (True,),
            "use_bias": (False, None),
            "use_qkv_bias": (False, None),
            "use_qk_norm": (True, None),
        },
        rope=_rope,
        unused=(
            "output_router_logits",
            "router_*",
            "idlm_*",
            "mask_token_id",
            "max_window_layers",
            "use_sliding_window",
        ),
    )
}
