"""Jais 2 (Inception 2025): layer norms, biases everywhere, an ungated MLP with squared ReLU (So et al. 2021)."""

from __future__ import annotations

from .._native.graph import relu_squared
from ..checkpoints.mapping import DECODER_TENSORS, Checkpoint, computed, f32, no_windows, only_with, tensor
from ..nn import MLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import CLASSIC_KEYS, EPS, Attention, Block, LayerNormDecoder
from .llama import head_dim_of

ARCHES = ("jais2",)


class Jais2(LayerNormDecoder):
    attention: type[Attention] = Attention

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(
                config,
                block,
                self.attention(config, block, i, rotation),
                MLP(block, config.dim, config.ffn_dim, relu_squared),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Jais2

# --- checkpoint ---

_LAYER = "model.layers.{i}"
_ATTENTION = only_with("attention_bias", default=True, biases=True)
_MLP = only_with("mlp_bias", default=True, biases=True)
HF = {
    "Jais2ForCausalLM": Checkpoint(
        "jais2",
        {
            **CLASSIC_KEYS,
            "attention.key_length": computed("u32", head_dim_of),
            "attention.value_length": computed("u32", head_dim_of),
            "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
            "rope.dimension_count": computed("u32", head_dim_of),
        },
        {
            **DECODER_TENSORS,
            **{f"blk.{{i}}.attn_{one}": tensor(f"{_LAYER}.self_attn.{one}_proj", change=_ATTENTION) for one in "qkv"},
            "blk.{i}.attn_output": tensor(f"{_LAYER}.self_attn.o_proj", change=_ATTENTION),
            "blk.{i}.ffn_up": tensor(f"{_LAYER}.mlp.up_proj", change=_MLP),
            "blk.{i}.ffn_down": tensor(f"{_LAYER}.mlp.down_proj", change=_MLP),
        },
        fixed={"hidden_act": ("relu2",)},
        checks=(no_windows,),
        unused=("attention_bias", "mlp_bias", "rms_norm_eps"),
    )
}
