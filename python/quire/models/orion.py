"""Orion (OrionStar 2024): Llama with layer norms and RoPE on halves."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_TENSORS, SILU, Checkpoint, f32, no_windows, u32
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import CLASSIC_KEYS, EPS, Attention, Block, LayerNormDecoder

ARCHES = ("orion",)


class Orion(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Orion

# --- checkpoint ---

HF = {
    "OrionForCausalLM": Checkpoint(
        "orion",
        {
            **CLASSIC_KEYS,
            "context_length": u32("max_sequence_length", "max_position_embeddings", "model_max_length"),
            "attention.layer_norm_epsilon": f32("rms_norm_eps", default=1e-5),  # despite its name, for layer norms
        },
        DECODER_TENSORS,
        fixed={"hidden_act": SILU, "attention_bias": (False,)},
        checks=(no_windows,),
        unused=("max_position_embeddings", "model_max_length"),
    )
}
