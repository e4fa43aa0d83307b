"""EXAONE 3 and 3.5 (LG AI Research 2024): Llama with RoPE on halves and other tensor names."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, SILU, Checkpoint, computed, f32, no_windows, rope_keys, u32
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from .base import Block, Decoder, DenseConfig
from .llama import Attention, head_dim_of

ARCHES = ("exaone",)


class Exaone(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Exaone

# --- checkpoint ---

_LAYER = "transformer.h.{i}"
HF = {
    "ExaoneForCausalLM": Checkpoint(
        "exaone",
        {
            **DECODER_KEYS,
            "block_count": u32("num_layers", "num_hidden_layers"),
            "attention.head_count_kv": u32("num_key_value_heads", default=8, low=1),
            "attention.key_length": computed("u32", head_dim_of),
            "attention.value_length": computed("u32", head_dim_of),
            "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-5),
            "rope.dimension_count": computed("u32", head_dim_of),
        },
        {
            "token_embd": "transformer.wte",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
            **{f"blk.{{i}}.attn_{one}": f"{_LAYER}.attn.attention.{one}_proj" for one in "qkv"},
            "blk.{i}.attn_output": f"{_LAYER}.attn.attention.out_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.ln_2",
            "blk.{i}.ffn_gate": f"{_LAYER}.mlp.c_fc_0",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.c_fc_1",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.c_proj",
        },
        fixed={"activation_function": SILU, "hidden_act": SILU},
        checks=(no_windows,),
        rope=lambda config: rope_keys(config, 500000.0),
        base="transformer.",
    )
}
