"""XGLM (Lin et al. 2021): OPT with GELU, sines for positions, and scaled embeddings."""

from __future__ import annotations

import math

from ..checkpoints.mapping import Checkpoint, Fields, computed, u32
from ..errors import UnsupportedError
from ..nn import MLP, Keys, Step, Tensor, Weight, Weights, embed
from .base import DenseConfig
from .classic import EPS, Attention, Block, LayerNormDecoder

ARCHES = ("xglm",)
OFFSET = 2  # the first token has the sines of position 2


class XGLM(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.weights, self.scale = weights, keys.number("embedding_scale", 1.0)
        self.made: dict[int, Weight] = {}  # tables of positions by n_ctx
        blocks = [
            Block(config, block, Attention(config, block, i), MLP(block, config.dim, config.ffn_dim, "gelu"))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def positions(self, step: Step) -> Tensor:
        """Return sines, then cosines of each position, of wavelengths from 2 pi to 20000 pi (Vaswani et al. 2017)."""
        import numpy as np

        if step.n_ctx not in self.made:
            n = self.config.dim // 2
            angles = np.arange(OFFSET, OFFSET + step.n_ctx)[:, None] * 10000.0 ** (-np.arange(n) / max(n - 1, 1))
            table = np.zeros((step.n_ctx, self.config.dim), np.float32)
            table[:, : 2 * n] = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
            self.made[step.n_ctx] = self.weights.computed("position_embd", table)
        return embed(step.positions, self.made[step.n_ctx])

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.scale + self.positions(step), step)


MODEL = XGLM

# --- checkpoint ---


def _dim(config: Fields) -> int:
    return config.integer("d_model" if config.has("d_model") else "hidden_size", 1024)


def _scale(config: Fields) -> float:
    return math.sqrt(_dim(config)) if config.flag("scale_embedding", True) else 1.0


def _without_gap(config: Fields) -> None:
    """Require a padding token whose id, which is also the index of a row of zeros, is no position."""
    padding = config.integer("pad_token_id", 1) if not config.is_null("pad_token_id") else 0
    if OFFSET <= padding < OFFSET + config.integer("max_position_embeddings", 2048):
        raise UnsupportedError(f"[convert] unsupported 'pad_token_id': {padding} (expected less than {OFFSET})")


_LAYER = "model.layers.{i}"
HF = {
    "XGLMForCausalLM": Checkpoint(
        "xglm",
        {
            "context_length": u32("max_position_embeddings", default=2048, low=1),
            "embedding_length": computed("u32", _dim),
            "block_count": u32("num_layers", "num_hidden_layers", default=24),
            "feed_forward_length": u32("ffn_dim", default=4096),
            "attention.head_count": u32("attention_heads", "num_attention_heads", default=16, low=1),
            "attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
            "embedding_scale": computed("f32", _scale),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.layer_norm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.self_attn_layer_norm",
            "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
            "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
            "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
            "blk.{i}.attn_output": f"{_LAYER}.self_attn.out_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.final_layer_norm",
            "blk.{i}.ffn_up": f"{_LAYER}.fc1",
            "blk.{i}.ffn_down": f"{_LAYER}.fc2",
        },
        fixed={"activation_function": ("gelu",)},
        checks=(_without_gap,),
        rope=None,
        tied=True,
        unused=("layerdrop", "init_std"),
        ignored=("model.embed_positions.weights",),  # computed here
    )
}
