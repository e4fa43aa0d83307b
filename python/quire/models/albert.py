"""ALBERT (Lan et al. 2020): BERT with a narrow embedding, and one layer that runs several times."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, Key, Source, computed, u32
from ..errors import UnsupportedError
from ..nn import MLP, Keys, Weights
from .encoding import (
    ENCODER_KEYS,
    HEAD_KEYS,
    TOKEN_HEAD,
    TOKEN_HEAD_KEYS,
    Attention,
    Block,
    Embeddings,
    Encoder,
    EncoderConfig,
    below,
)

ARCHES = ("albert",)


class Albert(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        kind = keys.text("hidden_activation", "gelu_tanh")
        if kind not in ("gelu", "gelu_tanh"):
            raise UnsupportedError(f"[{keys.arch}] unsupported hidden_activation '{kind}': expected gelu or gelu_tanh")
        (inner,) = weights.blocks(1)
        mlp = MLP(inner, config.dim, config.ffn_dim, "gelu" if kind == "gelu" else "gelu_tanh")
        block = Block(config, inner, Attention(config, inner), mlp)
        embeddings = Embeddings(config, weights, has_positions=True)
        super().__init__(config, keys, weights, embeddings, [block] * config.n_layer)


MODEL = Albert

# --- checkpoint ---

_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


def _activation(config: Fields) -> str:
    name = config.text("hidden_act", "gelu_new")
    if name not in _ACTIVATIONS:
        expected = ", ".join(_ACTIVATIONS)
        raise UnsupportedError(f"[convert] unsupported 'hidden_act': {name:.40} (expected {expected})")
    return _ACTIVATIONS[name]


_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "embedding_length": u32("hidden_size", default=4096),
    "block_count": u32("num_hidden_layers", default=12),
    "feed_forward_length": u32("intermediate_size", default=16384),
    "attention.head_count": u32("num_attention_heads", default=64, low=1),
    "hidden_activation": computed("string", _activation),
}
_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "embd_proj": "encoder.embedding_hidden_mapping_in",
    "blk.0.attn_q": f"{_LAYER}.attention.query",
    "blk.0.attn_k": f"{_LAYER}.attention.key",
    "blk.0.attn_v": f"{_LAYER}.attention.value",
    "blk.0.attn_output": f"{_LAYER}.attention.dense",
    "blk.0.attn_output_norm": f"{_LAYER}.attention.LayerNorm",
    "blk.0.ffn_up": f"{_LAYER}.ffn",
    "blk.0.ffn_down": f"{_LAYER}.ffn_output",
    "blk.0.layer_output_norm": f"{_LAYER}.full_layer_layer_norm",
}
_HEAD: dict[str, str | Source] = {"cls": "albert.pooler", "cls.output": "classifier"}


def _of(head: dict[str, str | Source] | None = None, keys: dict[str, Key] | None = None) -> Checkpoint:
    return Checkpoint(
        "albert",
        {**_KEYS, **(keys or {})},
        {**below("albert.", _TENSORS), **(head or {})},
        fixed={
            "num_hidden_groups": (1,),
            "inner_group_num": (1,),
            "position_embedding_type": ("absolute", None),
            "is_decoder": (False,),
        },
        rope=None,
        unused=(
            "type_vocab_size", "embedding_size", "tie_word_embeddings", "pad_token_id", "net_structure_type",
            "gap_size", "num_memory_blocks", "down_scale_factor",
        ),
        ignored=("pooler.*", "albert.pooler.*", "*position_ids", "predictions.*", "sop_classifier.*"),
        base="albert.",
        has_empty_layers=True,
    )  # fmt: skip


HF = {
    "AlbertModel": _of(),
    "AlbertForMaskedLM": _of(),
    "AlbertForSequenceClassification": _of(_HEAD, HEAD_KEYS),
    "AlbertForTokenClassification": _of(TOKEN_HEAD, TOKEN_HEAD_KEYS),
}
