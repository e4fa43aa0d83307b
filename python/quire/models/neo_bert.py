"""NeoBERT (Le Breton et al. 2025): Llama with bidirectional attention, and fused matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.mapping import Checkpoint, Entry, Fields, computed, f32, tensor, u32
from ..nn import FusedGatedMLP, Keys, RopeSpec, Weights, rope_spec
from . import eurobert
from .base import Block, DenseConfig
from .classic import in_order
from .encoder_heads import Classes, head_of
from .encoding import BothWaysConfig

ARCHES = ("neo-bert",)


class Attention(eurobert.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, rotation: RopeSpec) -> None:
        self.n_head = self.n_kv_head = config.n_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q, self.k, self.v = weights.linears("attn_qkv", config.dim, [config.n_head * config.head_dim] * 3)
        self.o = weights.linear("attn_output", config.n_head * config.head_dim, config.dim)


class NeoBert(eurobert.EuroBert):
    """Files store all of q, then k, then v, with the pairs of RoPE side by side."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        read = BothWaysConfig.read(keys, n_vocab)
        keys.only("attention.head_count_kv", read.n_head)
        self.config = config = replace(read, classes=Classes.read(keys, weights))
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        self.blocks = [
            Block(config, block, Attention(config, block, rotation), FusedGatedMLP(block, config.dim, config.ffn_dim))
            for block in weights.blocks(config.n_layer)
        ]
        self.norm = weights.norm("enc.output_norm", config.dim, config.eps)
        self.head = head_of(keys, weights, config.dim, config.classes)


MODEL = NeoBert

# --- checkpoint ---


def _ffn_dim(config: Fields) -> int:
    """Return two thirds of the width that config.json names, as a multiple of 8."""
    return -(-(2 * config.integer("intermediate_size", 3072) // 3) // 8) * 8


def _rope(config: Fields) -> Iterator[Entry]:
    yield "rope.freq_base", "f32", 10000.0
    yield "rope.scaling.type", "string", "none"


_LAYER = "model.transformer_encoder.{i}"
_NEO_BERT = Checkpoint(
    "neo-bert",
    {
        "context_length": u32("max_length", "max_position_embeddings", default=1024, low=1),
        "embedding_length": u32("hidden_size", default=768),
        "block_count": u32("num_hidden_layers", default=28),
        "feed_forward_length": computed("u32", _ffn_dim),
        "attention.head_count": u32("num_attention_heads", default=12, low=1),
        "attention.layer_norm_rms_epsilon": f32("norm_eps", default=1e-6),
        "attention.causal": computed("bool", lambda config: False),
    },
    {
        "token_embd": "model.encoder",
        "enc.output_norm": "model.layer_norm",
        "blk.{i}.attn_norm": f"{_LAYER}.attention_norm",
        "blk.{i}.attn_qkv": tensor(f"{_LAYER}.qkv", change=in_order),
        "blk.{i}.attn_output": f"{_LAYER}.wo",
        "blk.{i}.ffn_norm": f"{_LAYER}.ffn_norm",
        "blk.{i}.ffn_up": f"{_LAYER}.ffn.w12",
        "blk.{i}.ffn_down": f"{_LAYER}.ffn.w3",
    },
    fixed={
        "rope": (True, None),
        "rms_norm": (True, None),
        "hidden_act": ("SwiGLU", "swiglu", None),
        "ngpt": (False, None),
    },
    rope=_rope,
    unused=(
        "dim_head",
        "embedding_init_range",
        "decoder_init_range",
        "classifier_init_range",
        "base_scale",
        "flash_attention",
        "kwargs",
        "dropout*",
    ),
    ignored=("decoder.*", "model.freqs_cis", "freqs_cis"),
)
HF = {"NeoBERT": _NEO_BERT, "NeoBERTLMHead": _NEO_BERT}
