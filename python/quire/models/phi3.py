"""Phi-3 (Abdin et al. 2024) and Phi-4: fused q, k and v, fused gate and up, LongRoPE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    rope_keys,
    u32,
    window,
)
from ..checkpoints.mapping.rope import LONGROPE, Entry, kind_of, longrope_keys, partial_rotary, rope_of
from ..nn import CacheSpec, FusedGatedMLP, Keys, LongRope, Step, Tensor, Weights, rope
from .base import Block, Decoder, DenseConfig

ARCHES = ("phi3",)


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: LongRope) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        widths = [
            config.n_head * config.head_dim,
            config.n_kv_head * config.head_dim,
            config.n_kv_head * config.v_head_dim,
        ]
        self.q, self.k, self.v = weights.linears("attn_qkv", config.dim, widths, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        rotation = self.rotation.of(step.n_ctx)
        q = rope(self.q(x).heads(self.n_head), step.positions, rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Phi3(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.window = keys.integer("attention.sliding_window", 0)
        rotation = LongRope(keys, weights, config.n_rot)
        blocks = [
            Block(
                config, block, Attention(config, block, i, rotation), FusedGatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache([self.window] * self.config.n_layer)


MODEL = Phi3

# --- checkpoint ---


def _n_rot(config: Fields) -> int:
    shared = config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
    return partial_rotary(config, config.integer("head_dim", shared))


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; the original context length is a field outside ``rope_scaling``."""
    n_ctx_orig = config.integer("original_max_position_embeddings", 4096, low=1)
    if kind_of(rope_of(config)) in LONGROPE:
        return longrope_keys(config, n_ctx_orig)
    return rope_keys(config)


_PHI3 = Checkpoint(
    "phi3",
    {
        **DECODER_KEYS,
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "rope.dimension_count": computed("u32", _n_rot),
        "attention.sliding_window": window(None, none=0),
    },
    {
        **DECODER_TENSORS,
        "blk.{i}.attn_qkv": "model.layers.{i}.self_attn.qkv_proj",
        "blk.{i}.ffn_up": "model.layers.{i}.mlp.gate_up_proj",
    },
    fixed={"hidden_act": SILU},
    rope=_rope,
    unused=("attention_bias", "embd_pdrop", "resid_pdrop"),
)
# Phi-4 multimodal, text; images and sounds use encoders, and adapters that stand beside the matrices.
_ENCODERS = ("model.embed_tokens_extend.*", "*.lora_A.*", "*.lora_B.*")
_OF_ENCODERS = (
    "vision_config",
    "audio_config",
    "embd_layer",
    "*_processor",
    "vision_lora",
    "speech_lora",
    "feature_layer",
)
_PHI4 = replace(
    _PHI3,
    keys={**_PHI3.keys, "attention.head_count_kv": u32("num_key_value_heads", default=8, low=1)},
    ignored=_ENCODERS,
    unused=(*_PHI3.unused, *_OF_ENCODERS),
)
_WITH_ADAPTERS = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
HF = {
    "Phi3ForCausalLM": _PHI3,
    "Phi4MultimodalForCausalLM": _PHI4,
    "Phi4MMForCausalLM": replace(
        _PHI4,
        tensors={
            name: f"{source}.base_layer" if name.endswith(_WITH_ADAPTERS) else source
            for name, source in _PHI4.tensors.items()
        },
    ),
}
