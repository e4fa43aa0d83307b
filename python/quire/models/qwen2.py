"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on q, k and v, and RoPE on halves."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, no_windows
from ..nn import GatedMLP, Keys, RopeSpec, Weight, Weights, frequency_factors, rope_spec
from .base import Block, Decoder, DenseConfig
from .encoding import scoring
from .llama import Attention

ARCHES = ("qwen2",)


class Qwen2(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = self.rotation(keys, config, frequency_factors(weights, config.n_rot))
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation, bias=True),
                GatedMLP(block, config.dim, config.ffn_dim),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def rotation(self, keys: Keys, config: DenseConfig, factors: Weight | None) -> RopeSpec:
        return rope_spec(keys, n_dims=config.n_rot, layout="half", factors=factors)


MODEL = Qwen2

# --- checkpoint ---

_CAUSAL = Checkpoint("qwen2", DECODER_KEYS, DECODER_TENSORS, fixed={"hidden_act": SILU}, checks=(no_windows,))
HF = {
    "Qwen2ForCausalLM": _CAUSAL,
    "Qwen2ForSequenceClassification": scoring(_CAUSAL),
}
