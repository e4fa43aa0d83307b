"""BioGPT (Luo et al. 2022): OPT with GELU and scaled embeddings."""

from __future__ import annotations

import math

from ..checkpoints.mapping import Checkpoint, Fields, computed, rows, tensor, u32
from ..nn import MLP, Keys, Step, Tensor, Weights
from .base import DenseConfig
from .classic import EPS, Attention, Block, LayerNormDecoder, PositionTable

ARCHES = ("biogpt",)


class BioGPT(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.positions, self.scale = PositionTable(config, weights), keys.number("embedding_scale", 1.0)
        blocks = [
            Block(config, block, Attention(config, block, i), MLP(block, config.dim, config.ffn_dim, "gelu"))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.scale + self.positions(step), step)


MODEL = BioGPT

# --- checkpoint ---

OFFSET = 2  # rows of the position table before the first position


def _n_positions(config: Fields) -> int:
    return config.integer("max_position_embeddings", 1024, low=1)


def _scale(config: Fields) -> float:
    return math.sqrt(config.integer("hidden_size", 1024)) if config.flag("scale_embedding", True) else 1.0


_LAYER = "biogpt.layers.{i}"
HF = {
    "BioGptForCausalLM": Checkpoint(
        "biogpt",
        {
            "context_length": computed("u32", _n_positions),
            "embedding_length": u32("hidden_size", default=1024),
            "block_count": u32("num_hidden_layers", default=24),
            "feed_forward_length": u32("intermediate_size", default=4096),
            "attention.head_count": u32("num_attention_heads", default=16, low=1),
            # transformers' layers have norms with torch's epsilon, whatever ``layer_norm_eps`` is.
            "attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
            "embedding_scale": computed("f32", _scale),
        },
        {
            "token_embd": "biogpt.embed_tokens",
            "position_embd": tensor(
                "biogpt.embed_positions",
                change=rows(lambda config: OFFSET, lambda config: OFFSET + _n_positions(config)),
            ),
            "output_norm": "biogpt.layer_norm",
            "output": "output_projection",
            "blk.{i}.attn_norm": f"{_LAYER}.self_attn_layer_norm",
            "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
            "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
            "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
            "blk.{i}.attn_output": f"{_LAYER}.self_attn.out_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.final_layer_norm",
            "blk.{i}.ffn_up": f"{_LAYER}.fc1",
            "blk.{i}.ffn_down": f"{_LAYER}.fc2",
        },
        fixed={"hidden_act": ("gelu",)},
        rope=None,
        tied=True,
        unused=("layer_norm_eps", "layerdrop"),
        base="biogpt.",
    )
}
