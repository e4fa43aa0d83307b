"""Jina embeddings v3 (Sturua et al. 2024), without adapters: BERT with RoPE."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Key, Source, f32, u32
from ..nn import MLP, Keys, Weights, rope_spec
from .encoding import (
    ENCODER_KEYS,
    HEAD_KEYS,
    TOKEN_HEAD,
    TOKEN_HEAD_KEYS,
    TRAINING_HEADS,
    Attention,
    Block,
    Embeddings,
    Encoder,
    EncoderConfig,
    below,
    plain_base,
)
from .nomic_bert import TENSORS, fused_tensors

ARCHES = ("jina-bert-v3",)


class JinaBertV3(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        rotation = rope_spec(keys, n_dims=config.head_dim, layout="half")
        blocks = [
            Block(config, block, Attention(config, block, rotation), MLP(block, config.dim, config.ffn_dim, "gelu"))
            for block in weights.blocks(config.n_layer)
        ]
        super().__init__(config, keys, weights, Embeddings(config, weights), blocks)


MODEL = JinaBertV3

# --- checkpoint ---

BASE = 20000.0
_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "context_length": u32("max_position_embeddings", default=8194),
    "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
    "rope.freq_base": plain_base("rope_theta", BASE),
}
_TENSORS: dict[str, str | Source] = {
    **TENSORS,
    "blk.{i}.ffn_up": "layers.{i}.mlp.fc1",
    "blk.{i}.ffn_down": "layers.{i}.mlp.fc2",
    **fused_tensors("mixer", {"ffn_up": "fc1", "ffn_down": "fc2"}),
}
_HEAD: dict[str, str | Source] = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}


def _of(prefix: str, head: dict[str, str | Source]) -> Checkpoint:
    of_head = {} if not head else TOKEN_HEAD_KEYS if head is TOKEN_HEAD else HEAD_KEYS
    return Checkpoint(
        "jina-bert-v3",
        {**_KEYS, **of_head},
        {**below(prefix, _TENSORS), **head},
        fixed={"hidden_act": ("gelu", "gelu_python")},
        rope=None,
        unused=("type_vocab_size", "tie_word_embeddings", "classifier_dropout"),
        ignored=TRAINING_HEADS,
        base=prefix,
    )


HF = {
    "JinaEmbeddingsV3Model": _of("roberta.", {}),
    "JinaEmbeddingsV3ForMaskedLM": _of("roberta.", {}),
    "JinaEmbeddingsV3ForSequenceClassification": _of("roberta.", _HEAD),
    "JinaEmbeddingsV3ForTokenClassification": _of("roberta.", TOKEN_HEAD),
}
