"""EuroBERT (Boizard et al. 2025): llama whose tokens attend both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..checkpoint import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Key,
    Source,
    f32,
    made,
    only_with,
    rope_keys,
    taken,
)
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
from .encoding import BothWaysConfig, DenseHeads

ARCHES = ("eurobert",)


class Attention:
    def __init__(self, c: DenseConfig, w: Weights, rotation: RopeSpec) -> None:
        self.n_head, self.n_kv_head, self.scale, self.rotation = c.n_head, c.n_kv_head, c.head_dim**-0.5, rotation
        self.q = w.linear("attn_q", c.dim, c.n_head * c.head_dim, bias=None)
        self.k = w.linear("attn_k", c.dim, c.n_kv_head * c.head_dim, bias=None)
        self.v = w.linear("attn_v", c.dim, c.n_kv_head * c.v_head_dim, bias=None)
        self.o = w.linear("attn_output", c.n_head * c.v_head_dim, c.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale))


class EuroBert:
    LAYOUT: ClassVar[Layout] = "half"

    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        self.config = c = BothWaysConfig.read(m, n_vocab)
        rotation = rope_spec(m, n_dims=c.n_rot, layout=self.LAYOUT, factors=frequency_factors(w, c.n_rot))
        self.embedding = w.embedding("token_embd", n_vocab, c.dim)
        self.blocks: Sequence[Block] = [
            Block(c, b, Attention(c, b, rotation), GatedMLP(b, c.dim, c.ffn_dim)) for b in w.blocks(c.n_layer)
        ]
        self.norm, self.dense = w.norm("output_norm", c.dim, c.eps), DenseHeads(m, w, c.dim)

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.embedding(step.tokens)
        x = step.run_layers(self.blocks, x)
        return Vectors(self.dense(self.norm(select_rows(x, step.logit_rows))))


MODEL = EuroBert
_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
    "attention.causal": made("bool", lambda config: False),
}
_BIASED = {"attn": "attention_bias", "ffn_": "mlp_bias"}
_TENSORS: dict[str, str | Source] = {
    ours: taken(*Source.of(theirs).names, change=only_with(_BIASED[ours[8:12]], default=False, biases=True))
    if ours.endswith(("_q", "_k", "_v", "attn_output", "_gate", "_up", "_down"))
    else theirs
    for ours, theirs in DECODER_TENSORS.items()
    if ours != "output"
}
_CHECKPOINT = Checkpoint(
    "eurobert",
    _KEYS,
    _TENSORS,
    fixed={"hidden_act": SILU},
    rope=rope_keys,
    unused=("classifier_pooling", "clf_pooling"),
    ignored=("lm_head.*",),
)
HF = {"EuroBertModel": _CHECKPOINT, "EuroBertForMaskedLM": _CHECKPOINT}
