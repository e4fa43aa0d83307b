"""GPT-2 (Radford et al. 2019): learned positions, layer norms, biases everywhere."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, tensor, transposed, u32
from ..nn import MLP, Keys, Step, Tensor, Weights
from .base import DenseConfig
from .classic import EPS, Attention, Block, LayerNormDecoder, PositionTable

ARCHES = ("gpt2",)


class GPT2(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.positions = PositionTable(config, weights)
        blocks = [
            Block(config, block, Attention(config, block, i), MLP(block, config.dim, config.ffn_dim, "gelu_tanh"))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) + self.positions(step), step)


MODEL = GPT2

# --- checkpoint ---


def _ffn_dim(config: Fields) -> int:
    return config.integer("n_inner", 4 * config.integer("n_embd", 768), low=1)


_LAYER = "transformer.h.{i}"
HF = {
    "GPT2LMHeadModel": Checkpoint(
        "gpt2",
        {
            "context_length": u32("n_positions", default=1024, low=1),
            "embedding_length": u32("n_embd", default=768),
            "block_count": u32("n_layer", default=12),
            "feed_forward_length": computed("u32", _ffn_dim),
            "attention.head_count": u32("n_head", default=12, low=1),
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
        },
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
            "blk.{i}.attn_qkv": tensor(f"{_LAYER}.attn.c_attn", change=transposed),
            "blk.{i}.attn_output": tensor(f"{_LAYER}.attn.c_proj", change=transposed),
            "blk.{i}.ffn_norm": f"{_LAYER}.ln_2",
            "blk.{i}.ffn_up": tensor(f"{_LAYER}.mlp.c_fc", change=transposed),
            "blk.{i}.ffn_down": tensor(f"{_LAYER}.mlp.c_proj", change=transposed),
        },
        fixed={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
        },
        rope=None,
        tied=True,
        unused=("n_ctx", "reorder_and_upcast_attn", "summary_*"),
        ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),  # causal masks, saved by older versions
        base="transformer.",
    )
}
