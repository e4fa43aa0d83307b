"""StarCoder 2 (Lozhkov et al. 2024): grouped-query attention, a window, layer norms, biases everywhere."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, f32, tensor, u32, window
from ..nn import MLP, CacheSpec, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import CLASSIC_KEYS, EPS, GELU_TANH, Attention, Block, LayerNormDecoder, unless_unbiased

ARCHES = ("starcoder2",)


class StarCoder2(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.window = keys.integer("attention.sliding_window", 0)
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

    def cache(self) -> list[CacheSpec]:
        return self.config.cache([self.window] * self.config.n_layer)


MODEL = StarCoder2

# --- checkpoint ---

_LAYER = "model.layers.{i}"
_BIASES = unless_unbiased("use_bias", default=True)
HF = {
    "Starcoder2ForCausalLM": Checkpoint(
        "starcoder2",
        {
            **CLASSIC_KEYS,
            "attention.head_count_kv": u32("num_key_value_heads", default=2, low=1),
            "attention.layer_norm_epsilon": f32("norm_epsilon", default=1e-5),
            "attention.sliding_window": window(None),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_BIASES),
            "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_BIASES),
            "blk.{i}.attn_v": tensor(f"{_LAYER}.self_attn.v_proj", change=_BIASES),
            "blk.{i}.attn_output": tensor(f"{_LAYER}.self_attn.o_proj", change=_BIASES),
            "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.ffn_up": tensor(f"{_LAYER}.mlp.c_fc", change=_BIASES),
            "blk.{i}.ffn_down": tensor(f"{_LAYER}.mlp.c_proj", change=_BIASES),
        },
        fixed={"hidden_act": GELU_TANH},
        tied=True,
        unused=("use_bias",),
    )
}
