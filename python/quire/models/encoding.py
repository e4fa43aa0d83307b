"""Shared parts of encoders: sizes, bidirectional attention, post-norm blocks, classifiers, checkpoint mappings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from .._native.graph import concat
from ..checkpoints.mapping import Checkpoint, Fields, Key, Source, computed, f32, u32
from ..checkpoints.mapping.rope import kind_of, rope_of, theta_of
from ..errors import LoadError, UnsupportedError
from ..nn import (
    CacheSpec,
    Keys,
    Linear,
    RopeSpec,
    Step,
    Tensor,
    Weight,
    Weights,
    add_weight,
    embed,
    rope,
    select_rows,
)
from .base import MAX_DIM, MAX_HEAD_DIM, MAX_HEADS, PROBLEM_TYPES, RANK, Config, DenseConfig, Layer, Mixer, Vectors
from .encoder_heads import CLS, NO_CLASSES, Classes, MaskedHead, head_of


class _ReadsBothWays:
    """The answers of a config of encoders about itself; a mixin."""

    classes: Classes

    @property
    def is_encoder(self) -> bool:
        return True

    @property
    def scores_classes(self) -> bool:
        return self.classes.n > 0 and not self.classes.per_token

    @property
    def scores_tokens(self) -> bool:
        return self.classes.per_token


@dataclass(frozen=True)
class EncoderConfig(_ReadsBothWays, Config):
    """The keys of encoders with uniform layers and bidirectional attention."""

    n_head: int
    ffn_dim: int
    eps: float
    n_token_types: int  # 2 if tokens of a pair's second text have a type of their own
    classes: Classes
    predicts_masked: bool  # the output is the logits of a masked token, for sparse vectors
    hides_expansion: bool  # no token attends to those of type 1, the mask tokens of ColBERT's queries

    @classmethod
    def read_file(
        cls, keys: Keys, weights: Weights, n_vocab: int, pooling: int = CLS, *, is_causal: bool = False
    ) -> EncoderConfig:
        """Read the keys; ``pooling`` is the default of a classifier's (``Classes.read``)."""
        base = Config.read(keys, n_vocab)
        if not keys.has("attention.causal"):
            expected = str(is_causal).lower()
            raise LoadError(f"[{keys.arch}] missing key '{keys.full('attention.causal')}': expected {expected}")
        keys.only("attention.causal", is_causal)
        n_head = keys.same("attention.head_count", base.n_layer, low=1, high=MAX_HEADS)
        keys.only("attention.head_count_kv", n_head)
        if base.dim % n_head or base.dim // n_head > MAX_HEAD_DIM:
            raise LoadError(f"[{keys.arch}] embedding_length {base.dim} does not split into {n_head} heads")
        eps = keys.number("attention.layer_norm_epsilon")
        if not 0 < eps < 1:
            raise LoadError(f"[{keys.arch}] norm epsilon {eps} is out of range: expected between 0 and 1")
        n_types = weights.n_rows("token_types.weight") if weights.has("token_types.weight") else 0
        return cls(
            **vars(base),
            n_head=n_head,
            ffn_dim=keys.same("feed_forward_length", base.n_layer, low=1, high=MAX_DIM),
            eps=eps,
            n_token_types=n_types,
            classes=Classes.read(keys, weights, pooling),
            predicts_masked=weights.has("mlm.output.bias"),
            hides_expansion=keys.flag("attention.hidden_expansion", False),
        )

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_head

    @property
    def widest(self) -> int:
        return max(self.ffn_dim, self.dim, self.n_vocab // 2 if self.predicts_masked else 0)

    @property
    def tells_texts_apart(self) -> bool:
        return self.n_token_types > 1


@dataclass(frozen=True)
class BothWaysConfig(_ReadsBothWays, DenseConfig):
    """The keys of a decoder architecture used as an encoder, with bidirectional attention."""

    IS_CAUSAL: ClassVar[bool] = False
    classes: Classes = NO_CLASSES


def projections(weights: Weights, dim: int) -> list[Linear]:
    """Take the projections of q, k and v, which have the same number of heads, from one tensor or three."""
    if weights.has("attn_qkv.weight"):
        return weights.linears("attn_qkv", dim, [dim] * 3, bias=None)
    return [weights.linear(f"attn_{one}", dim, dim, bias=None) for one in "qkv"]


class Hiding:
    """Hides tokens of type 1 from all others, by a dimension of q and k whose product is very negative for them.

    Other added dimensions are 0; kernels want heads of a multiple of ``WIDTH``.
    """

    WIDTH = 16

    def __init__(self, weights: Weights, config: EncoderConfig) -> None:
        import numpy as np

        self.n_head = config.n_head
        queries, keys = np.zeros((2, 2, self.n_head, self.WIDTH), np.float32)
        queries[:, :, 0], keys[1, :, 0] = 100.0, -100.0 * config.head_dim**0.5  # -10000 after scaling
        self.queries = weights.computed("hiding_q", queries.reshape(2, -1))
        self.keys = weights.computed("hiding_k", keys.reshape(2, -1))

    def __call__(self, q: Tensor, k: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        more_q, more_k = (embed(step.token_types, table).heads(self.n_head) for table in (self.queries, self.keys))
        return concat(q, more_q, 0), concat(k, more_k, 0)


class Attention:
    """Bidirectional attention, to all rows or within ``window``.

    ``rotation`` None: without RoPE.  ``bias``: added to scores by distance (``Step.attend``).
    """

    def __init__(
        self,
        config: EncoderConfig,
        weights: Weights,
        rotation: RopeSpec | None = None,
        window: int = 0,
        bias: Weight | None = None,
    ) -> None:
        self.n_head, self.scale = config.n_head, config.head_dim**-0.5
        self.rotation, self.window, self.bias = rotation, window, bias
        self.q, self.k, self.v = projections(weights, config.dim)
        self.o = weights.linear("attn_output", config.dim, config.dim, bias=None)
        self.hiding = Hiding(weights, config) if config.hides_expansion else None

    def placed(self, x: Tensor, step: Step) -> Tensor:
        """Apply RoPE to heads."""
        return x if self.rotation is None else rope(x, step.positions, self.rotation)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x).heads(self.n_head) for linear in (self.q, self.k, self.v))
        q, k = self.placed(q, step), self.placed(k, step)
        if self.hiding is not None:
            q, k = self.hiding(q, k, step)
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale, window=self.window, bias=self.bias))


class Block:
    """A block whose norms come after the residual additions."""

    def __init__(self, config: EncoderConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attention, self.attn_norm = attention, weights.layer_norm("attn_output_norm", config.dim, config.eps)
        self.mlp, self.mlp_norm = mlp, weights.layer_norm("layer_output_norm", config.dim, config.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self.attn_norm(x + self.attention(x, step))
        return self.mlp_norm(x + self.mlp(x))


class Embeddings:
    """The sum of token, token-type and (if learned) position embeddings, then a norm; ELECTRA's may be narrow."""

    def __init__(self, config: EncoderConfig, weights: Weights, *, has_positions: bool = False) -> None:
        is_narrow = weights.has("embd_proj.weight")
        dim = weights.n_columns("embd_proj.weight") if is_narrow else config.dim
        self.tokens = weights.embedding("token_embd", config.n_vocab, dim)
        self.positions = weights.tensor("position_embd.weight", (config.n_ctx_train, dim)) if has_positions else None
        self.types, self.tells_texts_apart = token_types(weights, config, dim), config.tells_texts_apart
        self.hides_expansion = config.hides_expansion
        # ERNIE's embedding of the task, the same for all tokens.
        self.task = (
            weights.tensor("task_types.weight", (1, dim), vector=True) if weights.has("task_types.weight") else None
        )
        self.norm = weights.layer_norm("token_embd_norm", dim, config.eps)
        self.projection = weights.linear("embd_proj", dim, config.dim, bias=None) if is_narrow else None

    def __call__(self, step: Step) -> Tensor:
        x = self.tokens(step.tokens)
        if self.positions is not None:
            x = x + embed(step.positions, self.positions)
        if self.types is not None and self.tells_texts_apart and not self.hides_expansion:
            x = x + embed(step.token_types, self.types)
        elif self.types is not None:  # a single type for all tokens
            x = add_weight(x.heads(1), self.types.part(0, 1)).merge_heads()
        if self.task is not None:
            x = add_weight(x.heads(1), self.task).merge_heads()
        x = self.norm(x)
        return x if self.projection is None else self.projection(x)


def token_types(weights: Weights, config: EncoderConfig, dim: int) -> Weight | None:
    """Take the token-type embeddings, or None if the file has none."""
    if config.n_token_types == 0:
        return None
    return weights.tensor("token_types.weight", (config.n_token_types, dim), vector=True)


class Encoder:
    """Embeddings, blocks, then a classifier or dense layers if the file has them."""

    def __init__(
        self, config: EncoderConfig, keys: Keys, weights: Weights, embeddings: Embeddings, blocks: Sequence[Mixer]
    ) -> None:
        self.config, self.embeddings, self.blocks = config, embeddings, blocks
        self.head: Layer = (
            MaskedHead(weights, config.dim, config.eps, embeddings.tokens)
            if config.predicts_masked
            else head_of(keys, weights, config.dim, config.classes, eps=config.eps)
        )

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.embeddings(step)
        x = step.run_layers(self.blocks, x)
        return Vectors(self.head(select_rows(x, step.logit_rows)))


# --- checkpoint ---


def labels(config: Fields) -> list[str]:
    """Return the names of the classes, by number."""
    if not config.has("id2label"):
        return [f"LABEL_{i}" for i in range(config.integer("num_labels", 2))]
    names = config.inner("id2label")
    return [names.text(str(i)) for i in range(len(names.names()))]


def problem_type(config: Fields) -> str | None:
    """Return how scores are normalized; None: transformers decides by the number of classes."""
    if not config.has("problem_type"):
        return None
    found = config.text("problem_type")
    if found not in PROBLEM_TYPES:
        expected = ", ".join(PROBLEM_TYPES)
        raise UnsupportedError(
            f"[convert] unsupported 'problem_type' of {config.where}: '{found:.40}' (expected one of {expected})"
        )
    if found == PROBLEM_TYPES[0] and len(labels(config)) == 1:
        raise UnsupportedError(f"[convert] {found} of {config.where} needs several classes, but there is one")
    return found


ENCODER_KEYS: dict[str, Key] = {
    "context_length": u32("max_position_embeddings", default=512),
    "embedding_length": u32("hidden_size"),
    "block_count": u32("num_hidden_layers"),
    "feed_forward_length": u32("intermediate_size"),
    "attention.head_count": u32("num_attention_heads", low=1),
    "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-12),
    "attention.causal": computed("bool", lambda config: False),
}
HEAD_KEYS: dict[str, Key] = {
    "pooling_type": computed("u32", lambda config: RANK),
    "classifier.output_labels": computed("string[]", labels),
    "classifier.problem_type": computed("string", problem_type),
}
TOKEN_HEAD_KEYS: dict[str, Key] = {
    "classifier.per_token": computed("bool", lambda config: True),
    "classifier.output_labels": computed("string[]", labels),
}
TOKEN_HEAD: dict[str, str | Source] = {"cls.output": "classifier"}


def masked_head(dense: str, norm: str, output: str, bias: str) -> dict[str, str | Source]:
    """Return the tensors of a head that predicts masked tokens, whose matrix may be the embedding's."""
    return {"mlm": dense, "mlm.norm": norm, "mlm.output.weight": f"{output}.weight", "mlm.output.bias": bias}


BERT_MASKED = masked_head(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
)
ROBERTA_MASKED = masked_head("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")


def scoring(causal: Checkpoint) -> Checkpoint:
    """Return the checkpoint of a decoder with a classifier on the last token's hidden state."""
    tensors = {ours: theirs for ours, theirs in causal.tensors.items() if ours != "output"}
    return replace(causal, keys={**causal.keys, **HEAD_KEYS}, tensors={**tensors, "cls.output": "score"})


# Pre-training heads, and a pooler without a classifier.
TRAINING_HEADS = ("pooler.*", "*.pooler.*", "*position_ids", "cls.*", "lm_head.*")


def plain_base(name: str, default: float) -> Key:
    """Return the key of the RoPE base, without scaling; ``name`` is the field in old configurations."""

    def read(config: Fields) -> float:
        if (kind := kind_of(rope_of(config))) != "default":
            raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}': expected default")
        return config.number(name) if config.has(name) else theta_of(config, default)

    return Key("f32", read)


def below(prefix: str, tensors: Mapping[str, str | Source]) -> dict[str, str | Source]:
    """Return the tensors of a model that contains this one below ``prefix``."""
    return {ours: Source.of(theirs).moved("", prefix) for ours, theirs in tensors.items()}
