"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2020), DistilBERT, ELECTRA, ERNIE.

Attention is bidirectional; the output is a vector for each token, or class scores.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import Array, Checkpoint, Fields, Key, Source, computed, only_with, rows, tensor, u32
from ..nn import MLP, Keys, Weights
from .encoding import (
    BERT_MASKED,
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
    masked_head,
)

ARCHES = ("bert",)


class Bert(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        blocks = [
            Block(config, block, Attention(config, block), MLP(block, config.dim, config.ffn_dim, "gelu"))
            for block in weights.blocks(config.n_layer)
        ]
        super().__init__(config, keys, weights, Embeddings(config, weights, has_positions=True), blocks)


MODEL = Bert

# --- checkpoint ---


def _position_offset(config: Fields) -> int:
    """Return the first position used: RoBERTa's positions begin after the padding's."""
    return config.integer("pad_token_id", 1) + 1


def _n_positions(config: Fields) -> int:
    return config.integer("max_position_embeddings", 512)


_LAYER = "encoder.layer.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{i}.attn_q": f"{_LAYER}.attention.self.query",
    "blk.{i}.attn_k": f"{_LAYER}.attention.self.key",
    "blk.{i}.attn_v": f"{_LAYER}.attention.self.value",
    "blk.{i}.attn_output": f"{_LAYER}.attention.output.dense",
    "blk.{i}.attn_output_norm": f"{_LAYER}.attention.output.LayerNorm",
    "blk.{i}.ffn_up": f"{_LAYER}.intermediate.dense",
    "blk.{i}.ffn_down": f"{_LAYER}.output.dense",
    "blk.{i}.layer_output_norm": f"{_LAYER}.output.LayerNorm",
}
_FIXED = {"hidden_act": ("gelu", "gelu_python"), "position_embedding_type": ("absolute", None), "is_decoder": (False,)}


def _of(
    prefix: str, tensors: dict[str, str | Source], head: dict[str, str | Source], keys: dict[str, Key] = ENCODER_KEYS
) -> Checkpoint:
    """Return the checkpoint of a BERT class; ``prefix`` names its encoder, and encoder-only checkpoints omit it."""
    of_head = {} if not head else TOKEN_HEAD_KEYS if head is TOKEN_HEAD else HEAD_KEYS
    return Checkpoint(
        "bert",
        {**keys, **of_head},
        {**below(prefix, tensors), **head},
        fixed=_FIXED,
        rope=None,
        unused=(
            "type_vocab_size",
            "task_type_vocab_size",
            "tie_word_embeddings",
            "classifier_dropout",
            "pooler_*",
            "pad_token_id",
            "embedding_size",  # the tensors have it
            "summary_*",
        ),
        ignored=TRAINING_HEADS,
        masked={} if head else BERT_MASKED if prefix in ("bert.", "ernie.") else ROBERTA_MASKED,
        base=prefix,
    )


_DISTIL_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "embedding_length": u32("dim"),
    "block_count": u32("n_layers"),
    "feed_forward_length": u32("hidden_dim"),
    "attention.head_count": u32("n_heads", low=1),
    "attention.layer_norm_epsilon": computed("f32", lambda config: 1e-12),
}
_DISTIL_LAYER = "transformer.layer.{i}"
_DISTIL_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{i}.attn_q": f"{_DISTIL_LAYER}.attention.q_lin",
    "blk.{i}.attn_k": f"{_DISTIL_LAYER}.attention.k_lin",
    "blk.{i}.attn_v": f"{_DISTIL_LAYER}.attention.v_lin",
    "blk.{i}.attn_output": f"{_DISTIL_LAYER}.attention.out_lin",
    "blk.{i}.attn_output_norm": f"{_DISTIL_LAYER}.sa_layer_norm",
    "blk.{i}.ffn_up": f"{_DISTIL_LAYER}.ffn.lin1",
    "blk.{i}.ffn_down": f"{_DISTIL_LAYER}.ffn.lin2",
    "blk.{i}.layer_output_norm": f"{_DISTIL_LAYER}.output_layer_norm",
}


_DISTIL_MASKED = masked_head("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias")


def _distil(head: dict[str, str | Source], keys: dict[str, Key]) -> Checkpoint:
    return Checkpoint(
        "bert",
        {**_DISTIL_KEYS, **keys},
        {**below("distilbert.", _DISTIL_TENSORS), **head},
        fixed={"activation": ("gelu",)},
        rope=None,
        unused=("sinusoidal_pos_embds", "tie_weights_", "tie_word_embeddings"),  # sinusoids are stored as weights too
        ignored=("vocab_*",),
        masked={} if head else _DISTIL_MASKED,
        base="distilbert.",
    )


_DISTIL_HEAD: dict[str, str | Source] = {"cls": "pre_classifier", "cls.output": "classifier"}
_DISTIL_HEAD_KEYS: dict[str, Key] = {**HEAD_KEYS, "classifier.activation": computed("string", lambda config: "relu")}
_ROBERTA_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "context_length": computed("u32", lambda config: _n_positions(config) - _position_offset(config)),
}
_ROBERTA_TENSORS: dict[str, str | Source] = {
    **_TENSORS,
    "position_embd": tensor("embeddings.position_embeddings", change=rows(_position_offset, _n_positions)),
}
_BERT_HEAD: dict[str, str | Source] = {"cls": "bert.pooler.dense", "cls.output": "classifier"}
_ROBERTA_HEAD: dict[str, str | Source] = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
_ELECTRA_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "embedding_length": u32("hidden_size", default=256),
}
_ELECTRA_TENSORS: dict[str, str | Source] = {**_TENSORS, "embd_proj": "embeddings_project"}
_ELECTRA_HEAD_KEYS: dict[str, Key] = {
    **_ELECTRA_KEYS,
    "classifier.activation": computed("string", lambda config: "gelu"),
}
_REM_TENSORS: dict[str, str | Source] = {**_TENSORS, "embd_proj": "encoder.embedding_hidden_mapping_in"}
_REM_HEAD: dict[str, str | Source] = {"cls": "rembert.pooler.dense", "cls.output": "classifier"}
_BERT = _of("bert.", _TENSORS, {})


def _first(x: Array, config: Fields) -> Array:
    """Take the embedding of the task 0, which all texts have unless a program says otherwise."""
    first: Array = x[:1].copy()
    return first


_ERNIE_TENSORS: dict[str, str | Source] = {
    **_TENSORS,
    "task_types": tensor(
        "embeddings.task_type_embeddings", change=only_with("use_task_id", default=False, change=_first)
    ),
}
_ERNIE_HEAD: dict[str, str | Source] = {"cls": "ernie.pooler.dense", "cls.output": "classifier"}
_COLBERT = replace(_BERT, tensors={**_BERT.tensors, "dense_2": "linear"})
HF = {
    "DistilBertModel": _distil({}, {}),
    "DistilBertForMaskedLM": _distil({}, {}),
    "DistilBertForSequenceClassification": _distil(_DISTIL_HEAD, _DISTIL_HEAD_KEYS),
    "DistilBertForTokenClassification": _distil(TOKEN_HEAD, TOKEN_HEAD_KEYS),
    "BertModel": _of("bert.", _TENSORS, {}),
    "BertForMaskedLM": _of("bert.", _TENSORS, {}),
    "BertForSequenceClassification": _of("bert.", _TENSORS, _BERT_HEAD),
    "HF_ColBERT": _COLBERT,
    "BertForTokenClassification": _of("bert.", _TENSORS, TOKEN_HEAD),
    "ErnieModel": _of("ernie.", _ERNIE_TENSORS, {}),
    "ErnieForMaskedLM": _of("ernie.", _ERNIE_TENSORS, {}),
    "ErnieForSequenceClassification": _of("ernie.", _ERNIE_TENSORS, _ERNIE_HEAD),
    "ErnieForTokenClassification": _of("ernie.", _ERNIE_TENSORS, TOKEN_HEAD),
    "RobertaModel": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "RobertaForMaskedLM": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "RobertaForSequenceClassification": _of("roberta.", _ROBERTA_TENSORS, _ROBERTA_HEAD, _ROBERTA_KEYS),
    "RobertaForTokenClassification": _of("roberta.", _ROBERTA_TENSORS, TOKEN_HEAD, _ROBERTA_KEYS),
    "XLMRobertaModel": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "BgeM3EmbeddingModel": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),  # vLLM's name of BGE-M3
    "XLMRobertaForMaskedLM": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "XLMRobertaForSequenceClassification": _of("roberta.", _ROBERTA_TENSORS, _ROBERTA_HEAD, _ROBERTA_KEYS),
    "XLMRobertaForTokenClassification": _of("roberta.", _ROBERTA_TENSORS, TOKEN_HEAD, _ROBERTA_KEYS),
    "CamembertModel": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "CamembertForMaskedLM": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "CamembertForSequenceClassification": _of("roberta.", _ROBERTA_TENSORS, _ROBERTA_HEAD, _ROBERTA_KEYS),
    "CamembertForTokenClassification": _of("roberta.", _ROBERTA_TENSORS, TOKEN_HEAD, _ROBERTA_KEYS),
    "Data2VecTextModel": _of("data2vec_text.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "Data2VecTextForSequenceClassification": _of("data2vec_text.", _ROBERTA_TENSORS, _ROBERTA_HEAD, _ROBERTA_KEYS),
    "Data2VecTextForTokenClassification": _of("data2vec_text.", _ROBERTA_TENSORS, TOKEN_HEAD, _ROBERTA_KEYS),
    "RemBertModel": _of("rembert.", _REM_TENSORS, {}),
    "RemBertForSequenceClassification": _of("rembert.", _REM_TENSORS, _REM_HEAD),
    "RemBertForTokenClassification": _of("rembert.", _REM_TENSORS, TOKEN_HEAD),
    "ElectraModel": _of("electra.", _ELECTRA_TENSORS, {}, _ELECTRA_KEYS),
    "ElectraForSequenceClassification": _of("electra.", _ELECTRA_TENSORS, _ROBERTA_HEAD, _ELECTRA_HEAD_KEYS),
    "ElectraForTokenClassification": _of("electra.", _ELECTRA_TENSORS, TOKEN_HEAD, _ELECTRA_KEYS),
}
