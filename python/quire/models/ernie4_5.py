"""ERNIE 4.5, dense (Baidu 2025): Llama whose checkpoints already use interleaved RoPE."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    no_windows,
    rope_keys,
)
from ..checkpoints.mapping.rope import Entry
from ..nn import GatedMLP, Keys, Weights, rope_spec
from .base import Block, Decoder, DenseConfig
from .llama import Attention, head_dim_of

ARCHES = ("ernie4_5",)


class Ernie45(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Ernie45

# --- checkpoint ---


def _head_dim(config: Fields) -> int:
    return head_dim_of(config) if config.has("head_dim") or config.is_null("head_dim") else 128


def _n_kv_head(config: Fields) -> int:
    if config.is_null("num_key_value_heads"):
        return config.integer("num_attention_heads", low=1)
    return config.integer("num_key_value_heads", 2, low=1)


def _rope(config: Fields) -> Iterator[Entry]:
    return rope_keys(config, 500000.0)


HF = {
    "Ernie4_5ForCausalLM": Checkpoint(
        "ernie4_5",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": computed("u32", _n_kv_head),
            "attention.key_length": computed("u32", _head_dim),
            "attention.value_length": computed("u32", _head_dim),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        },
        DECODER_TENSORS,
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        rope=_rope,
        tied=True,
        unused=("use_bias",),
    )
}
