"""Jais (Sengupta et al. 2023): ALiBi, a gated MLP, scores divided by the size of a head."""

from __future__ import annotations

from ..checkpoints.mapping import Array, Checkpoint, Fields, computed, f32, tensor, transposed, u32
from ..errors import LoadError, UnsupportedError
from ..nn import GatedMLP, Keys, Weights
from .base import DenseConfig
from .classic import EPS, AlibiAttention, Block, LayerNormDecoder, LinearBiases

ARCHES = ("jais",)


class Attention(AlibiAttention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, biases: LinearBiases | None) -> None:
        super().__init__(config, weights, layer, biases)
        self.scale = 1.0 / config.head_dim


class Jais(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        if (max_bias := keys.number("attention.max_alibi_bias", 0.0)) < 0:
            raise LoadError(f"[jais] negative attention.max_alibi_bias: {max_bias}")
        biases = LinearBiases(weights, config.n_head, max_bias) if max_bias else None
        blocks = [
            Block(config, block, Attention(config, block, i, biases), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Jais

# --- checkpoint ---


def _embedding_scale(config: Fields) -> float:
    return config.number("mup_embeddings_scale", config.number("embeddings_scale", 1.0))


def _width_scale(config: Fields) -> float:
    if config.has("mup_output_alpha"):
        return config.number("mup_output_alpha") * config.number("mup_width_scale")
    return config.number("width_scale", 1.0)


def _embedding(x: Array, config: Fields) -> Array:
    import numpy as np

    scaled: Array = x * np.float32(_embedding_scale(config))
    return scaled


def _head(x: Array, config: Fields) -> Array:
    """Scale the embedding matrix for use as the output matrix."""
    import numpy as np

    scaled: Array = x * np.float32(_width_scale(config))
    return scaled


def _scores_by_size(config: Fields) -> None:
    for name in ("scale_qk_dot_by_d", "mup_scale_qk_dot_by_d"):
        if config.flag(name, True) is False:
            raise UnsupportedError(f"[convert] unsupported '{name}': false")


_LAYER = "transformer.h.{i}"
HF = {
    "JAISLMHeadModel": Checkpoint(
        "jais",
        {
            "context_length": u32("n_positions", low=1),
            "embedding_length": u32("n_embd"),
            "block_count": u32("n_layer"),
            "feed_forward_length": u32("n_inner"),
            "attention.head_count": u32("n_head", low=1),
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
            "attention.max_alibi_bias": computed("f32", lambda config: 8.0),
        },
        {
            "token_embd": tensor("transformer.wte", change=_embedding),
            "output_norm": "transformer.ln_f",
            "output": tensor("transformer.wte", change=_head),
            "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
            "blk.{i}.attn_qkv": tensor(f"{_LAYER}.attn.c_attn", change=transposed),
            "blk.{i}.attn_output": tensor(f"{_LAYER}.attn.c_proj", change=transposed),
            "blk.{i}.ffn_norm": f"{_LAYER}.ln_2",
            "blk.{i}.ffn_up": tensor(f"{_LAYER}.mlp.c_fc", change=transposed),
            "blk.{i}.ffn_gate": tensor(f"{_LAYER}.mlp.c_fc2", change=transposed),
            "blk.{i}.ffn_down": tensor(f"{_LAYER}.mlp.c_proj", change=transposed),
        },
        fixed={
            "activation_function": ("swiglu",),
            "alibi_scaling": (None,),
            "position_embedding_type": ("alibi",),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
            "tie_word_embeddings": (True,),
        },
        checks=(_scores_by_size,),
        rope=None,
        tied=True,
        unused=(
            "reorder_and_upcast_attn",
            "summary_*",
            "mup_output_alpha",
            "mup_width_scale",
            "width_scale",
            "embeddings_scale",
            "mup_embeddings_scale",
        ),
        ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias", "*relative_pe.slopes"),
        base="transformer.",
    )
}
