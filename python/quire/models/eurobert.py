"""EuroBERT (Boizard et al. 2025): Llama with bidirectional attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    Key,
    Source,
    computed,
    f32,
    only_with,
    rope_keys,
    tensor,
)
from ..errors import UnsupportedError
from ..nn import (
    CacheSpec,
    GatedMLP,
    Keys,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
    select_rows,
)
from ..nn.rotary import Layout
from .base import Block, DenseConfig, Vectors
from .encoder_heads import CLS, MEAN, Classes, head_of
from .encoding import HEAD_KEYS, TOKEN_HEAD, TOKEN_HEAD_KEYS, BothWaysConfig

ARCHES = ("eurobert",)


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, rotation: RopeSpec) -> None:
        self.n_head = config.n_head
        self.n_kv_head = config.n_kv_head
        self.scale = config.head_dim**-0.5
        self.rotation = rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale))


class EuroBert:
    LAYOUT: ClassVar[Layout] = "half"

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        read = BothWaysConfig.read(keys, n_vocab)
        self.config = config = replace(read, classes=Classes.read(keys, weights))
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout=self.LAYOUT, factors=frequency_factors(weights, config.n_rot)
        )
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        self.blocks: Sequence[Block] = [
            Block(config, block, Attention(config, block, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for block in weights.blocks(config.n_layer)
        ]
        self.norm = weights.norm("output_norm", config.dim, config.eps)
        self.head = head_of(keys, weights, config.dim, config.classes, activation="gelu")

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.embedding(step.tokens)
        x = step.run_layers(self.blocks, x)
        return Vectors(self.head(self.norm(select_rows(x, step.logit_rows))))


MODEL = EuroBert

# --- checkpoint ---

_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
    "attention.causal": computed("bool", lambda config: False),
}
_BIASED = {"attn": "attention_bias", "ffn_": "mlp_bias"}
_TENSORS: dict[str, str | Source] = {
    ours: tensor(*Source.of(theirs).names, change=only_with(_BIASED[ours[8:12]], default=False, biases=True))
    if ours.endswith(("_q", "_k", "_v", "attn_output", "_gate", "_up", "_down"))
    else theirs
    for ours, theirs in DECODER_TENSORS.items()
    if ours != "output"
}
_POOLINGS = {"bos": CLS, "mean": MEAN, "late": MEAN}


def _pooling(config: Fields) -> str:
    """Return the pooling of a classifier: late is the mean of all tokens' scores."""
    pooling = config.text("classifier_pooling", "late")
    if pooling not in _POOLINGS:
        expected = ", ".join(_POOLINGS)
        raise UnsupportedError(f"[convert] unsupported 'classifier_pooling': '{pooling}' (expected {expected})")
    return pooling


_TEXT_KEYS: dict[str, Key] = {
    **HEAD_KEYS,
    "classifier.pooling_type": computed("u32", lambda config: _POOLINGS[_pooling(config)]),
    "classifier.late": computed("bool", lambda config: _pooling(config) == "late"),
}
_HEAD: dict[str, str | Source] = {"cls": "dense", "cls.output": "classifier"}


def _of(head: dict[str, str | Source] | None = None, keys: dict[str, Key] | None = None) -> Checkpoint:
    return Checkpoint(
        "eurobert",
        {**_KEYS, **(keys or {})},
        {**_TENSORS, **(head or {})},
        fixed={"hidden_act": SILU},
        rope=rope_keys,
        unused=("classifier_pooling", "clf_pooling"),
        ignored=("lm_head.*",),
    )


HF = {
    "EuroBertModel": _of(),
    "EuroBertForMaskedLM": _of(),
    "EuroBertForSequenceClassification": _of(_HEAD, _TEXT_KEYS),
    "EuroBertForTokenClassification": _of(TOKEN_HEAD, TOKEN_HEAD_KEYS),
}
