"""Qwen3 (Yang et al. 2025), dense: norms on the heads of q and k, no biases."""

from __future__ import annotations

from ..checkpoint import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, no_windows, u32
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from .base import Block, Decoder, DenseConfig
from .encoding import scoring

ARCHES = ("qwen3",)


class Attention:
    def __init__(self, c: DenseConfig, w: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, c.n_head, c.n_kv_head
        self.scale, self.rotation = c.head_dim**-0.5, rotation
        self.q = w.linear("attn_q", c.dim, c.n_head * c.head_dim, bias=None)
        self.k = w.linear("attn_k", c.dim, c.n_kv_head * c.head_dim, bias=None)
        self.v = w.linear("attn_v", c.dim, c.n_kv_head * c.v_head_dim, bias=None)
        self.o = w.linear("attn_output", c.n_head * c.v_head_dim, c.dim, bias=None)
        self.q_norm = w.norm("attn_q_norm", c.head_dim, c.eps)
        self.k_norm = w.norm("attn_k_norm", c.head_dim, c.eps)

    def attended(self, x: Tensor, step: Step) -> Tensor:
        """What heads give."""
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return step.attend(self.layer, q, k, v, scale=self.scale)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.o(self.attended(x, step))


class Qwen3(Decoder):
    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        c = DenseConfig.read(m, n_vocab)
        rotation = rope_spec(m, n_dims=c.n_rot, layout="half", factors=frequency_factors(w, c.n_rot))
        blocks = [
            Block(c, b, Attention(c, b, i, rotation), GatedMLP(b, c.dim, c.ffn_dim))
            for i, b in enumerate(w.blocks(c.n_layer))
        ]
        super().__init__(c, w, blocks)


MODEL = Qwen3
HEADS = {
    "attention.key_length": u32("head_dim", default=128),
    "attention.value_length": u32("head_dim", default=128),
}
QK_NORMS = {
    "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
}
_CAUSAL = Checkpoint(
    "qwen3",
    {**DECODER_KEYS, **HEADS},
    {**DECODER_TENSORS, **QK_NORMS},
    fixed={"hidden_act": SILU},
    checks=(no_windows,),
    unused=("attention_bias",),
)
HF = {"Qwen3ForCausalLM": _CAUSAL, "Qwen3ForSequenceClassification": scoring(_CAUSAL)}
