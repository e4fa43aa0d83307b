"""Qwen (Bai et al. 2023): fused q, k and v with biases, a gated MLP."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, u32
from ..errors import LoadError, UnsupportedError
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from .base import Block, Decoder, DenseConfig
from .classic import Attention

ARCHES = ("qwen",)


class Qwen(Decoder):
    """The key ``feed_forward_length`` is the width of gate and up together."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        if config.ffn_dim % 2:
            raise LoadError(f"[qwen] odd feed_forward_length {config.ffn_dim}: it counts gate and up together")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(
                config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim // 2)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Qwen

# --- checkpoint ---


def _n_ctx(config: Fields) -> int:
    """Return the trained context; beyond it two fields scale frequencies and queries, for which files have no keys."""
    n, trained = config.integer("max_position_embeddings", 8192, low=1), config.integer("seq_length", 8192, low=1)
    scales = [config.flag(name, True) for name in ("use_dynamic_ntk", "use_logn_attn")]
    return min(n, trained) if any(scales) else n


def _heads(config: Fields) -> None:
    shared = config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
    if config.has("kv_channels") and config.integer("kv_channels") != shared:
        raise UnsupportedError(
            f"[convert] unsupported 'kv_channels': {config.integer('kv_channels')} (expected {shared})"
        )


_LAYER = "transformer.h.{i}"
HF = {
    "QWenLMHeadModel": Checkpoint(
        "qwen",
        {
            "context_length": computed("u32", _n_ctx),
            "embedding_length": u32("hidden_size"),
            "block_count": u32("num_hidden_layers"),
            "feed_forward_length": u32("intermediate_size"),
            "attention.head_count": u32("num_attention_heads", low=1),
            "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-6),
            "rope.freq_base": f32("rotary_emb_base", default=10000.0),
        },
        {
            "token_embd": "transformer.wte",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
            "blk.{i}.attn_qkv": f"{_LAYER}.attn.c_attn",
            "blk.{i}.attn_output": f"{_LAYER}.attn.c_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.ln_2",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.w1",
            "blk.{i}.ffn_gate": f"{_LAYER}.mlp.w2",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.c_proj",
        },
        fixed={"rotary_pct": (1.0,), "scale_attn_weights": (True,), "no_bias": (True,)},
        checks=(_heads,),
        rope=None,
        unused=("bf16", "fp16", "fp32", "onnx_safe", "softmax_in_fp32", "use_cache_*", "use_flash_attn"),
        base="transformer.",
    )
}
