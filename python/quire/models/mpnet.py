"""MPNet (Song et al. 2020): BERT with a learned bias for each bucket of distances, as in T5."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, Key, Source, computed, rows, tensor
from ..nn import MLP, Keys, Weights
from .encoding import (
    ENCODER_KEYS,
    HEAD_KEYS,
    ROBERTA_MASKED,
    TOKEN_HEAD,
    TOKEN_HEAD_KEYS,
    TRAINING_HEADS,
    Attention,
    Block,
    Embeddings,
    Encoder,
    EncoderConfig,
    below,
)
from .t5encoder import both_ways

ARCHES = ("mpnet",)
N_BUCKETS = 32  # whatever the configuration says
FIRST_POSITION = 2  # after the padding's


class MPNet(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        keys.only("attention.relative_buckets_count", N_BUCKETS)
        table = weights.numbers("attn_rel_b.weight", (N_BUCKETS, config.n_head))
        bias = weights.computed("attn_rel_b", both_ways(table))
        blocks = [
            Block(config, block, Attention(config, block, bias=bias), MLP(block, config.dim, config.ffn_dim, "gelu"))
            for block in weights.blocks(config.n_layer)
        ]
        super().__init__(config, keys, weights, Embeddings(config, weights, has_positions=True), blocks)


MODEL = MPNet

# --- checkpoint ---


def _n_positions(config: Fields) -> int:
    return config.integer("max_position_embeddings", 512)


_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "context_length": computed("u32", lambda config: _n_positions(config) - FIRST_POSITION),
    "attention.relative_buckets_count": computed("u32", lambda config: N_BUCKETS),
}
_LAYER = "encoder.layer.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": tensor("embeddings.position_embeddings", change=rows(lambda config: FIRST_POSITION, _n_positions)),
    "token_embd_norm": "embeddings.LayerNorm",
    "attn_rel_b": "encoder.relative_attention_bias",
    "blk.{i}.attn_q": f"{_LAYER}.attention.attn.q",
    "blk.{i}.attn_k": f"{_LAYER}.attention.attn.k",
    "blk.{i}.attn_v": f"{_LAYER}.attention.attn.v",
    "blk.{i}.attn_output": f"{_LAYER}.attention.attn.o",
    "blk.{i}.attn_output_norm": f"{_LAYER}.attention.LayerNorm",
    "blk.{i}.ffn_up": f"{_LAYER}.intermediate.dense",
    "blk.{i}.ffn_down": f"{_LAYER}.output.dense",
    "blk.{i}.layer_output_norm": f"{_LAYER}.output.LayerNorm",
}
_HEAD: dict[str, str | Source] = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}


def _of(head: dict[str, str | Source], keys: dict[str, Key]) -> Checkpoint:
    return Checkpoint(
        "mpnet",
        {**_KEYS, **keys},
        {**below("mpnet.", _TENSORS), **head},
        fixed={"hidden_act": ("gelu",), "relative_attention_num_buckets": (N_BUCKETS,)},
        rope=None,
        unused=("tie_word_embeddings", "pad_token_id"),
        ignored=TRAINING_HEADS,
        masked={} if head else ROBERTA_MASKED,
        base="mpnet.",
    )


HF = {
    "MPNetModel": _of({}, {}),
    "MPNetForMaskedLM": _of({}, {}),
    "MPNetForSequenceClassification": _of(_HEAD, HEAD_KEYS),
    "MPNetForTokenClassification": _of(TOKEN_HEAD, TOKEN_HEAD_KEYS),
}
