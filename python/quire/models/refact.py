"""Refact (Small Magellanic Cloud AI 2023): ALiBi, multi-query attention."""

from __future__ import annotations

from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, f32, rows, tensor, u32
from ..nn import GatedMLP, Keys, Weights
from . import starcoder
from .base import Block, Decoder, DenseConfig
from .classic import AlibiAttention, LinearBiases

ARCHES = ("refact",)


class Refact(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        biases = LinearBiases(weights, config.n_head)
        blocks = [
            Block(config, block, AlibiAttention(config, block, i, biases), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Refact

# --- checkpoint ---

STEP = 256  # MLP widths are rounded up to a multiple of this


def _ffn_dim(config: Fields) -> int:
    """Return the MLP width: two thirds of four times the model's width, rounded up."""
    return (int(2 * 4 * config.integer("n_embd") / 3) + STEP - 1) // STEP * STEP


def _head_dim(config: Fields) -> int:
    return config.integer("n_embd") // config.integer("n_head", low=1)


_LAYER = "transformer.h.{i}"
HF = {
    "GPTRefactForCausalLM": Checkpoint(
        "refact",
        {
            "context_length": u32("n_positions", low=1),
            "embedding_length": u32("n_embd"),
            "block_count": u32("n_layer"),
            "feed_forward_length": computed("u32", _ffn_dim),
            "attention.head_count": u32("n_head", low=1),
            "attention.head_count_kv": computed("u32", lambda config: 1),
            "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-5),
        },
        {
            "token_embd": "transformer.wte",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
            "blk.{i}.attn_q": f"{_LAYER}.attn.q",
            "blk.{i}.attn_k": tensor(f"{_LAYER}.attn.kv", change=rows(lambda config: 0, _head_dim)),
            "blk.{i}.attn_v": tensor(f"{_LAYER}.attn.kv", change=rows(_head_dim, lambda config: 2 * _head_dim(config))),
            "blk.{i}.attn_output": f"{_LAYER}.attn.c_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.ln_2",
            "blk.{i}.ffn_gate": tensor(f"{_LAYER}.mlp.gate_up_proj", change=rows(lambda config: 0, _ffn_dim)),
            "blk.{i}.ffn_up": tensor(
                f"{_LAYER}.mlp.gate_up_proj", change=rows(_ffn_dim, lambda config: 2 * _ffn_dim(config))
            ),
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.c_proj",
        },
        fixed={
            "activation_function": SILU,
            "do_layer_norm_before": (True,),
            "multi_query": (True,),
            "n_inner": (None,),
            "scale_attn_weights": (True,),
        },
        rope=None,
        unused=("attention_bias_in_fp32", *starcoder.UNUSED),
        base="transformer.",
    )
}
