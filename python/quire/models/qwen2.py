"""Qwen2 and Qwen2.5 (Yang et al. 2024): llama with biases on q, k and v, and heads rotated by halves."""

from __future__ import annotations

from ..checkpoint import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, no_windows
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from .base import Block, Decoder, DenseConfig
from .llama import Attention

ARCHES = ("qwen2",)


class Qwen2(Decoder):
    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        c = DenseConfig.read(m, n_vocab)
        rotation = rope_spec(m, n_dims=c.n_rot, layout="half", factors=frequency_factors(w, c.n_rot))
        blocks = [
            Block(c, b, Attention(c, b, i, rotation, bias=True), GatedMLP(b, c.dim, c.ffn_dim))
            for i, b in enumerate(w.blocks(c.n_layer))
        ]
        super().__init__(c, w, blocks)


MODEL = Qwen2
HF = {
    "Qwen2ForCausalLM": Checkpoint(
        "qwen2", DECODER_KEYS, DECODER_TENSORS, fixed={"hidden_act": SILU}, checks=(no_windows,)
    )
}
