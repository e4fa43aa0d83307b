"""Mellum 2 (JetBrains 2026): Qwen3 with experts, and a separate RoPE base in windowed layers."""

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
    flag,
    has_windows,
    rope_keys,
    u32,
)
from ..checkpoints.mapping import local_layers as locals_of
from ..checkpoints.mapping.rope import Entry, kind_of, rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, ExpertConfig, Keys, RopeSpec, Weights, experts_of, rope_spec
from .base import Block, Decoder, DenseConfig, local_layers
from .qwen3 import QK_NORMS, Attention

ARCHES = ("mellum",)
PERIOD = 4  # every fourth layer has full attention


class Mellum(Decoder):
    """RoPE scaling applies to the full-attention layers only."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, normalize=True, reads=("expert_weights_norm",))
        window = keys.integer("attention.sliding_window", 0)
        is_local = [window > 0 and local for local in local_layers(keys, config.n_layer, PERIOD)]
        self.windows = [window if local else 0 for local in is_local]
        everywhere = rope_spec(keys, n_dims=config.n_rot, layout="half")
        local_base = keys.number("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))
        if local_base <= 0:
            raise LoadError(f"[mellum] rope.freq_base_swa {local_base} is out of range: expected more than 0")
        nearby = RopeSpec(n_dims=config.n_rot, layout="half", freq_base=local_base)
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, nearby if is_local[i] else everywhere),
                experts_of(block, config.dim, experts, 0),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Mellum

# --- checkpoint ---


def pattern_of(config: Fields) -> list[bool]:
    """Return the layers with windows; none if ``layer_types`` is missing."""
    return locals_of(config, 1)


def _window(config: Fields) -> int:
    has_windows(config)
    return config.integer("sliding_window", 1024, low=1)


def _experts_everywhere(config: Fields) -> None:
    if set(map(str, config.items("mlp_layer_types"))) - {"sparse"}:
        raise UnsupportedError("[convert] unsupported 'mlp_layer_types': expected sparse for each layer")


def _rope(config: Fields) -> Iterator[Entry]:
    kinds = config.inner("rope_parameters")
    if not config.has("rope_parameters"):
        yield "rope.freq_base_swa", "f32", 10000.0
    if kind_of(rope_of(config)) == "llama3":
        raise UnsupportedError("[convert] unsupported rope scaling 'llama3': expected default, linear or yarn")
    yield from rope_keys(config, 500000.0)
    if not kinds.has("sliding_attention"):
        if any(pattern_of(config)) and kinds.has("full_attention"):
            raise UnsupportedError("[convert] 'rope_parameters' has no entry for sliding_attention")
        return
    local = rope_of(config, "sliding_attention")
    if kind_of(local) != "default":
        raise UnsupportedError(
            f"[convert] unsupported rope scaling of sliding_attention: '{kind_of(local)}' (expected default)"
        )
    yield "rope.freq_base_swa", "f32", local.number("rope_theta", 10000.0)


HF = {
    "MellumForCausalLM": Checkpoint(
        "mellum",
        {
            **DECODER_KEYS,
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.sliding_window": computed("u32", _window),
            "attention.sliding_window_pattern": computed("bool[]", pattern_of),
            "expert_count": u32("num_local_experts", "num_experts", default=64),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=896),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
        },
        {**DECODER_TENSORS, **EXPERT_TENSORS, **QK_NORMS},
        fixed={"hidden_act": SILU},
        checks=(_experts_everywhere,),
        rope=_rope,
        unused=("attention_bias", "num_mtp_layers", "num_nextn_predict_layers", "mtp_*"),
        ignored=("mtp.*",),
    )
}
