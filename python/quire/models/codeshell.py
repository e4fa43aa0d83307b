"""CodeShell (Xie et al. 2024): layer norms, grouped-query attention, biases everywhere."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, u32
from ..nn import MLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import EPS, GELU_TANH, Attention, Block, LayerNormDecoder

ARCHES = ("codeshell",)


class CodeShell(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation),
                MLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = CodeShell

# --- checkpoint ---


def _ffn_dim(config: Fields) -> int:
    return config.integer("n_inner", 4 * config.integer("n_embd"), low=1)


_LAYER = "transformer.h.{i}"
HF = {
    "CodeShellForCausalLM": Checkpoint(
        "codeshell",
        {
            "context_length": u32("n_positions", low=1),
            "embedding_length": u32("n_embd"),
            "block_count": u32("n_layer"),
            "feed_forward_length": computed("u32", _ffn_dim),
            "attention.head_count": u32("n_head", low=1),
            "attention.head_count_kv": u32("num_query_groups", low=1),
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
            "rope.freq_base": computed("f32", lambda config: 10000.0),
        },
        {
            "token_embd": "transformer.wte",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
            "blk.{i}.attn_qkv": f"{_LAYER}.attn.c_attn",
            "blk.{i}.attn_output": f"{_LAYER}.attn.c_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.ln_2",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.c_fc",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.c_proj",
        },
        fixed={
            "activation_function": GELU_TANH,
            "group_query_attention": (True,),
            "position_embedding_type": ("rope",),
            "rope_scaling": (None,),
            "scale_attn_weights": (True,),
        },
        rope=None,
        tied=True,
        unused=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "summary_*"),
        ignored=("*h.*.attn.bias", "*h.*.attn.rotary_emb.*"),
        base="transformer.",
    )
}
