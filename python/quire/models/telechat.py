"""TeleChat (Wang et al. 2024) and TeleChat 2 (TeleAI 2024): Llama, with k and v fused in checkpoints.

The RoPE base follows from the trained length, as in the authors' code; it would grow further beyond that length.
"""

from __future__ import annotations

import math

from ..checkpoints.mapping import (
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    Key,
    computed,
    f32,
    interleaved,
    tensor,
    u32,
)

# --- checkpoint ---


def _n_kv_head(config: Fields) -> int:
    return config.integer("num_key_value_heads", config.integer("n_head", low=1), low=1)


def _head_dim(config: Fields) -> int:
    return config.integer("hidden_size") // config.integer("n_head", low=1)


def _trained(config: Fields) -> int:
    return config.integer("training_seqlen", 8192, low=1)


def _freq_base(config: Fields) -> float:
    doublings = math.log2(_trained(config) / config.integer("base_seqlen", _trained(config), low=1)) + 1
    n = _head_dim(config)
    return 10000.0 * math.pow(max(2 ** math.ceil(doublings) - 1, 1), n / max(n - 2, 1))


def _part(which: int) -> Change:
    """Take the rows of k (0) or v (1): each k head precedes its v head."""

    def change(x: Array, config: Fields) -> Array:
        n = _n_kv_head(config)
        heads = x.reshape(n, 2, x.shape[0] // n // 2, *x.shape[1:])[:, which]
        if which == 0:  # from halves to pairs
            halves = heads.reshape(n, 2, heads.shape[1] // 2, *x.shape[1:])
            heads = halves.swapaxes(1, 2)
        rows: Array = heads.reshape(-1, *x.shape[1:])
        return rows

    return change


KEYS: dict[str, Key] = {
    "context_length": computed("u32", _trained),
    "embedding_length": u32("hidden_size"),
    "block_count": u32("n_layer"),
    "feed_forward_length": u32("ffn_hidden_size"),
    "attention.head_count": u32("n_head", low=1),
    "attention.head_count_kv": computed("u32", _n_kv_head),
    "attention.key_length": computed("u32", _head_dim),
    "attention.value_length": computed("u32", _head_dim),
    "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-5),
    "rope.dimension_count": computed("u32", _head_dim),
    "rope.freq_base": computed("f32", _freq_base),
    "vocab_size": u32("vocab_size"),
}
_LAYER = "transformer.h.{i}"
_TELECHAT = Checkpoint(
    "llama",
    KEYS,
    {
        "token_embd": "transformer.word_embeddings",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
        "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attention.query", change=interleaved("n_head")),
        "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attention.key_value", change=_part(0)),
        "blk.{i}.attn_v": tensor(f"{_LAYER}.self_attention.key_value", change=_part(1)),
        "blk.{i}.attn_output": f"{_LAYER}.self_attention.dense",
        "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{i}.ffn_gate": f"{_LAYER}.mlp.gate_proj",
        "blk.{i}.ffn_up": f"{_LAYER}.mlp.up_proj",
        "blk.{i}.ffn_down": f"{_LAYER}.mlp.down_proj",
    },
    fixed={
        "apply_residual_connection_post_layernorm": (False, None),
        "embed_layernorm": (False, None),
        "num_moe_experts": (None,),
        "n_inner": (None,),
        "hidden_act": (*SILU, None),
    },
    rope=None,
    unused=(
        "logn",
        "flash_attn",
        "skip_bias_add*",
        "attention_softmax_in_fp32",
        "seq_length",
        "max_position_embeddings",
        "*_fusion",
        "slow_but_exact",
    ),
    base="transformer.",
)
HF = {
    "TeleChat2ForCausalLM": _TELECHAT,
    "TeleChatForCausalLM": _TELECHAT,
    "Telechat2ForCausalLM": _TELECHAT,
    "TelechatForCausalLM": _TELECHAT,
}
