"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2020), encoders.

Tokens see each other both ways; the answer is a vector for each, or scores of classes.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoint import Checkpoint, Fields, Key, Source, f32, made, rows, taken, u32
from ..nn import MLP, CacheSpec, Keys, Step, Tensor, Weight, Weights, add_weight, embed, select_rows, tanh
from .base import RANK, EncoderConfig, Vectors

ARCHES = ("bert",)


class Attention:
    def __init__(self, c: EncoderConfig, w: Weights) -> None:
        self.n_head, self.scale = c.n_head, (c.dim // c.n_head) ** -0.5
        self.q = w.linear("attn_q", c.dim, c.dim, bias=None)
        self.k = w.linear("attn_k", c.dim, c.dim, bias=None)
        self.v = w.linear("attn_v", c.dim, c.dim, bias=None)
        self.o = w.linear("attn_output", c.dim, c.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x).heads(self.n_head) for linear in (self.q, self.k, self.v))
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale))


class Block:
    """Norms come after what they follow is added."""

    def __init__(self, c: EncoderConfig, w: Weights) -> None:
        self.attention, self.attn_norm = Attention(c, w), w.layer_norm("attn_output_norm", c.dim, c.eps)
        self.mlp, self.mlp_norm = MLP(w, c.dim, c.ffn_dim, "gelu"), w.layer_norm("layer_output_norm", c.dim, c.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self.attn_norm(x + self.attention(x, step))
        return self.mlp_norm(x + self.mlp(x))


class Classifier:
    """Scores of classes, from the vector of the first token; ``cls`` is BERT's pooler."""

    def __init__(self, c: EncoderConfig, w: Weights) -> None:
        self.dense = w.linear("cls", c.dim, c.dim, bias=None) if w.has("cls.weight") else None
        self.out = w.linear("cls.output", c.dim, c.n_class, bias=None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(x if self.dense is None else tanh(self.dense(x)))


def first_type(w: Weights, c: EncoderConfig) -> Weight | None:
    """What tokens of the first text of a pair, or of the only one, have added; None for a file without types."""
    if c.n_token_types == 0:
        return None
    return w.tensor("token_types.weight", (c.n_token_types, c.dim), vector=True).part(0, 1)


class Bert:
    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        self.config = c = EncoderConfig.read_file(m, w, n_vocab)
        self.tokens = w.embedding("token_embd", n_vocab, c.dim)
        self.positions = w.tensor("position_embd.weight", (c.n_ctx_train, c.dim))
        self.first_type = first_type(w, c)
        self.norm = w.layer_norm("token_embd_norm", c.dim, c.eps)
        self.blocks = [Block(c, b) for b in w.blocks(c.n_layer)]
        self.classifier = Classifier(c, w) if c.n_class else None

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.tokens(step.tokens) + embed(step.positions, self.positions)
        if self.first_type is not None:  # one row of a table
            x = add_weight(x.heads(1), self.first_type).merge_heads()
        x = self.norm(x)
        for block in self.blocks:
            x = block(x, step)
        x = select_rows(x, step.logit_rows)
        return Vectors(x if self.classifier is None else self.classifier(x))


MODEL = Bert


def _position_offset(config: Fields) -> int:
    """RoBERTa's positions begin behind the padding's."""
    return config.integer("pad_token_id", 1) + 1


def _n_positions(config: Fields) -> int:
    return config.integer("max_position_embeddings", 512)


def _labels(config: Fields) -> list[str]:
    """The names of the classes, by number."""
    if not config.has("id2label"):
        return [f"LABEL_{i}" for i in range(config.integer("num_labels", 2))]
    names = config.inner("id2label")
    return [names.text(str(i)) for i in range(len(names.names()))]


_KEYS: dict[str, Key] = {
    "context_length": u32("max_position_embeddings", default=512),
    "embedding_length": u32("hidden_size"),
    "block_count": u32("num_hidden_layers"),
    "feed_forward_length": u32("intermediate_size"),
    "attention.head_count": u32("num_attention_heads", low=1),
    "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-12),
    "attention.causal": made("bool", lambda config: False),
}
_HEAD_KEYS = {"pooling_type": made("u32", lambda config: RANK), "classifier.output_labels": made("string[]", _labels)}
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
# Heads of training, and BERT's pooler where no classifier reads it.
_IGNORED = ("pooler.*", "*.pooler.*", "*position_ids", "cls.*", "lm_head.*")
_FIXED = {"hidden_act": ("gelu", "gelu_python"), "position_embedding_type": ("absolute", None), "is_decoder": (False,)}


def _below(prefix: str, tensors: dict[str, str | Source]) -> dict[str, str | Source]:
    """The same tensors in a model that has this one as a part."""
    return {
        ours: replace(entry := Source.of(theirs), names=tuple(prefix + name for name in entry.names))
        for ours, theirs in tensors.items()
    }


def _of(
    prefix: str, tensors: dict[str, str | Source], head: dict[str, str | Source], keys: dict[str, Key] = _KEYS
) -> Checkpoint:
    """Of a class of BERT's: ``prefix`` is the name of the encoder in it, which checkpoints of it alone leave out."""
    return Checkpoint(
        "bert",
        {**keys, **(_HEAD_KEYS if head else {})},
        {**_below(prefix, tensors), **head},
        fixed=_FIXED,
        rope=None,
        unused=("type_vocab_size", "tie_word_embeddings", "classifier_dropout", "pooler_*", "pad_token_id"),
        ignored=_IGNORED,
        base=prefix,
    )


_ROBERTA_KEYS: dict[str, Key] = {
    **_KEYS,
    "context_length": made("u32", lambda config: _n_positions(config) - _position_offset(config)),
}
_ROBERTA_TENSORS: dict[str, str | Source] = {
    **_TENSORS,
    "position_embd": taken("embeddings.position_embeddings", change=rows(_position_offset, _n_positions)),
}
_BERT_HEAD: dict[str, str | Source] = {"cls": "bert.pooler.dense", "cls.output": "classifier"}
_ROBERTA_HEAD: dict[str, str | Source] = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
HF = {
    "BertModel": _of("bert.", _TENSORS, {}),
    "BertForMaskedLM": _of("bert.", _TENSORS, {}),
    "BertForSequenceClassification": _of("bert.", _TENSORS, _BERT_HEAD),
    "RobertaModel": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "RobertaForMaskedLM": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "RobertaForSequenceClassification": _of("roberta.", _ROBERTA_TENSORS, _ROBERTA_HEAD, _ROBERTA_KEYS),
    "XLMRobertaModel": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "XLMRobertaForMaskedLM": _of("roberta.", _ROBERTA_TENSORS, {}, _ROBERTA_KEYS),
    "XLMRobertaForSequenceClassification": _of("roberta.", _ROBERTA_TENSORS, _ROBERTA_HEAD, _ROBERTA_KEYS),
}
