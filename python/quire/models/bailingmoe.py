"""Ling (Ling team 2025): DeepSeek MoE with optionally normalized expert weights and a normalized output matrix."""

from __future__ import annotations

from typing import ClassVar

from ..checkpoints.mapping import (
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    computed,
    interleaved,
    rows,
    tensor,
    u32,
)
from ..errors import UnsupportedError
from . import llama
from .deepseek import DeepSeek

ARCHES = ("bailingmoe",)


class BailingMoe(DeepSeek):
    READS: ClassVar[tuple[str, ...]] = ("expert_weights_norm", "expert_weights_scale")


MODEL = BailingMoe

# --- checkpoint ---


def _all_routed(config: Fields) -> None:
    if n := config.integer("first_k_dense_replace", 0):
        raise UnsupportedError(f"[convert] unsupported 'first_k_dense_replace': {n} (expected 0)")


def _ends(config: Fields) -> list[int]:
    """Return the row boundaries of queries, keys and values in their fused tensor."""
    size = llama.head_dim_of(config)
    n_head, n_kv_head = (config.integer(f"num_{one}_heads", low=1) for one in ("attention", "key_value"))
    return [0, n_head * size, (n_head + n_kv_head) * size, (n_head + 2 * n_kv_head) * size]


def _part(i: int, then: Change | None = None) -> Change:
    cut = rows(lambda config: _ends(config)[i], lambda config: _ends(config)[i + 1])
    return cut if then is None else lambda x, config: then(cut(x, config), config)


def _head(x: Array, config: Fields) -> Array:
    """Normalize each column if ``norm_head`` is set."""
    import numpy as np

    if not config.flag("norm_head", False):
        return x
    scaled: Array = x / (np.linalg.norm(x, axis=0, keepdims=True) + np.float32(1e-7))
    return scaled


_ATTENTION = "model.layers.{i}.attention"
_QKV = f"{_ATTENTION}.query_key_value"
HF = {
    "BailingMoeForCausalLM": Checkpoint(
        "bailingmoe",
        {
            **llama.KEYS,
            "expert_count": u32("num_experts"),
            "expert_used_count": u32("num_experts_per_tok"),
            "expert_feed_forward_length": u32("moe_intermediate_size"),
            "expert_shared_count": u32("num_shared_experts", default=0),
            "expert_weights_scale": computed("f32", lambda config: 1.0),
            "expert_weights_norm": computed("bool", lambda config: config.flag("norm_topk_prob")),
        },
        {
            **llama.TENSORS,
            **EXPERT_TENSORS,
            **SHARED_EXPERT_TENSORS,
            "token_embd": "model.word_embeddings",
            "output": tensor("lm_head", change=_head),
            "blk.{i}.attn_q": tensor(_QKV, change=_part(0, interleaved("num_attention_heads"))),
            "blk.{i}.attn_k": tensor(_QKV, change=_part(1, interleaved("num_key_value_heads"))),
            "blk.{i}.attn_v": tensor(_QKV, change=_part(2)),
            "blk.{i}.attn_output": f"{_ATTENTION}.dense",
        },
        fixed={
            "hidden_act": SILU,
            "use_bias": (False,),
            "use_qkv_bias": (False,),
            "use_rmsnorm": (True,),
            "norm_softmax": (False,),
            "tie_word_embeddings": (False,),
        },
        checks=(_all_routed,),
        unused=("norm_head",),
    )
}
