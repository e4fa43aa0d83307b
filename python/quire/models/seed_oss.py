"""Seed-OSS (ByteDance Seed 2025): Llama with biases and RoPE on halves."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, SILU, Checkpoint, Fields, computed, no_windows
from ..checkpoints.mapping.decoder import BIASED_TENSORS
from ..nn import GatedMLP, Keys, Step, Tensor, Weights, frequency_factors, rope_spec
from .base import Decoder, DenseConfig, Layer, Mixer
from .llama import Attention, head_dim_of

ARCHES = ("seed_oss",)


class Block:
    """The usual block; files name the norm before the MLP ``post_attention_norm``."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.norm("post_attention_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class SeedOss(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = SeedOss

# --- checkpoint ---


def _head_dim(config: Fields) -> int:
    return head_dim_of(config) if config.has("head_dim") or config.is_null("head_dim") else 128


def _n_kv_head(config: Fields) -> int:
    if config.is_null("num_key_value_heads"):
        return config.integer("num_attention_heads", low=1)
    return config.integer("num_key_value_heads", 8, low=1)


HF = {
    "SeedOssForCausalLM": Checkpoint(
        "seed_oss",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": computed("u32", _n_kv_head),
            "attention.key_length": computed("u32", _head_dim),
            "attention.value_length": computed("u32", _head_dim),
        },
        {
            **{k: v for k, v in BIASED_TENSORS.items() if not k.endswith("ffn_norm")},
            "blk.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
        },
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        unused=("attention_bias", "attention_out_bias", "mlp_bias"),
    )
}
