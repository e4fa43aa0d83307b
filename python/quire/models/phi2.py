"""Phi 1, 1.5 and 2 (Gunasekar et al. 2023, Li et al. 2023): attention and MLP in parallel after one norm."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, f32
from ..nn import MLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import CLASSIC_KEYS, EPS, GELU_TANH, Attention, LayerNormDecoder, ParallelBlock, n_rotated

ARCHES = ("phi2",)


class Phi2(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            ParallelBlock(
                config,
                block,
                Attention(config, block, i, rotation),
                MLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Phi2

# --- checkpoint ---

_LAYER = "model.layers.{i}"
HF = {
    "PhiForCausalLM": Checkpoint(
        "phi2",
        {
            **CLASSIC_KEYS,
            "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
            "rope.dimension_count": n_rotated(0.5),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.final_layernorm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
            "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
            "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
            "blk.{i}.attn_output": f"{_LAYER}.self_attn.dense",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.fc1",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.fc2",
        },
        fixed={"hidden_act": GELU_TANH, "qk_layernorm": (False,)},
    )
}
