"""Orion (OrionStar 2024): llama with layer norms and rotated halves."""

from __future__ import annotations

from ..checkpoint import DECODER_TENSORS, SILU, Checkpoint, f32, no_windows, u32
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import CLASSIC_KEYS, EPS, Attention, Block, LayerNormDecoder

ARCHES = ("orion",)


class Orion(LayerNormDecoder):
    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        c = DenseConfig.read(m, n_vocab, eps=EPS)
        rotation = rope_spec(m, n_dims=c.n_rot, layout="half", factors=frequency_factors(w, c.n_rot))
        blocks = [
            Block(c, b, Attention(c, b, i, rotation), GatedMLP(b, c.dim, c.ffn_dim))
            for i, b in enumerate(w.blocks(c.n_layer))
        ]
        super().__init__(c, w, blocks)


MODEL = Orion
HF = {
    "OrionForCausalLM": Checkpoint(
        "orion",
        {
            **CLASSIC_KEYS,
            "context_length": u32("max_sequence_length", "max_position_embeddings", "model_max_length"),
            "attention.layer_norm_epsilon": f32("rms_norm_eps", default=1e-5),  # of layer norms, whatever its name
        },
        DECODER_TENSORS,
        fixed={"hidden_act": SILU, "attention_bias": (False,)},
        checks=(no_windows,),
        unused=("max_position_embeddings", "model_max_length"),
    )
}
