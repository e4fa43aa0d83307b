"""Gemma (Mesnard et al. 2024): Llama with large heads, a scaled embedding and GeGLU."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, Checkpoint, adding, tensor, u32
from ..nn import GatedMLP, Keys, Step, Tensor, Weights, rope_spec
from .base import Block, Decoder, DenseConfig
from .llama import Attention

ARCHES = ("gemma",)


class Gemma(Decoder):
    """Files store norm weights with the 1 added that checkpoints omit."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation),
                GatedMLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.config.dim**0.5, step)


MODEL = Gemma

# --- checkpoint ---

_NORMS = {
    "output_norm": "model.norm",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
}
HF = {
    "GemmaForCausalLM": Checkpoint(
        "gemma",
        {
            **DECODER_KEYS,
            "context_length": u32("max_position_embeddings", default=8192),
            "attention.head_count_kv": u32("num_key_value_heads", default=16, low=1),
            "attention.key_length": u32("head_dim", default=256),
            "attention.value_length": u32("head_dim", default=256),
        },
        {**DECODER_TENSORS, **{ours: tensor(theirs, change=adding(1.0)) for ours, theirs in _NORMS.items()}},
        # "gelu" in old configurations means the tanh approximation; transformers reads it this way too.
        fixed={
            "hidden_act": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu"),
            "hidden_activation": (None, "gelu_pytorch_tanh"),
            "use_bidirectional_attention": (False, None),
        },
        tied=True,
        unused=("attention_bias",),
    )
}
