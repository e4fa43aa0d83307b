"""Baichuan 1 and 2 (Yang et al. 2023): Llama; the 13B models, with 40 layers, use ALiBi."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Entry,
    Fields,
    computed,
    interleaved,
    no_windows,
    rope_keys,
    tensor,
    u32,
)
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig
from .classic import AlibiAttention, LinearBiases

ARCHES = ("baichuan",)
ALIBI_LAYERS = 40  # the 13B models; no key tells them apart


class Baichuan(Decoder):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        biases = LinearBiases(weights, config.n_head) if config.n_layer == ALIBI_LAYERS else None
        blocks = [
            Block(
                config,
                block,
                AlibiAttention(config, block, i, biases) if biases else llama.Attention(config, block, i, rotation),
                GatedMLP(block, config.dim, config.ffn_dim),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Baichuan

# --- checkpoint ---

NORMED_HEAD_VOCAB = 125696  # the vocabulary of Baichuan 2, whose output matrix has normalized rows


def _part(which: int) -> Change:
    """Take a third of the rows; those of q and k are interleaved."""

    def change(x: Array, config: Fields) -> Array:
        n = x.shape[0] // 3
        part = x[which * n : (which + 1) * n]
        return part if which == 2 else interleaved("num_attention_heads")(part, config)

    return change


def normed_head(x: Array, config: Fields) -> Array:
    """Normalize each row of the output matrix, as Baichuan 2 does."""
    import numpy as np

    if config.integer("vocab_size") != NORMED_HEAD_VOCAB:
        return x
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-7), np.float32)


def _rope(config: Fields) -> Iterator[Entry]:
    if config.integer("num_hidden_layers") != ALIBI_LAYERS:
        yield from rope_keys(config)


_LAYER = "model.layers.{i}"
_CHECKPOINT = Checkpoint(
    "baichuan",
    {
        **DECODER_KEYS,
        "context_length": u32("max_position_embeddings", "model_max_length"),
        "rope.dimension_count": computed("u32", llama.head_dim_of),
    },
    {
        **DECODER_TENSORS,
        "output": tensor("lm_head", change=normed_head),
        **{
            f"blk.{{i}}.attn_{one}": tensor(f"{_LAYER}.self_attn.W_pack", change=_part("qkv".index(one)))
            for one in "qkv"
        },
    },
    fixed={"hidden_act": SILU},
    checks=(no_windows,),
    rope=_rope,
    unused=("model_max_length", "z_loss_weight"),
)
HF = {"BaichuanForCausalLM": _CHECKPOINT, "BaiChuanForCausalLM": _CHECKPOINT}
