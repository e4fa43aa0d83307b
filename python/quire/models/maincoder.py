"""Maincoder (Maincode 2025): Llama's interleaved RoPE, then query and key norms."""

from __future__ import annotations

from ..checkpoints.mapping import SILU, Checkpoint, f32, no_windows
from ..nn import GatedMLP, Keys, Weights, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig
from .hunyuan_dense import Attention

ARCHES = ("maincoder",)


class Maincoder(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Maincoder

# --- checkpoint ---

_LAYER = "model.layers.{i}.self_attn"
HF = {
    "MaincoderForCausalLM": Checkpoint(
        "maincoder",
        {**llama.KEYS, "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5)},
        {
            **llama.TENSORS,
            "blk.{i}.attn_q": f"{_LAYER}.q_proj",  # stored interleaved
            "blk.{i}.attn_k": f"{_LAYER}.k_proj",
            "blk.{i}.attn_q_norm": f"{_LAYER}.q_norm",
            "blk.{i}.attn_k_norm": f"{_LAYER}.k_norm",
        },
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        unused=("attention_bias", "mlp_bias", "use_qk_norm"),
    )
}
