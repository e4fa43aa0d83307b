"""Classes whose forward pass is that of DeepSeek V3: Youtu (dense), Sarvam 105B."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import Fields, computed, factor, flag, u32
from ..errors import UnsupportedError
from . import deepseek2
from .deepseek2 import LATENT_TENSORS

# --- checkpoint ---

_V3 = deepseek2.HF["DeepseekV3ForCausalLM"]
_DENSE = {key: value for key, value in _V3.keys.items() if not key.startswith("expert_")}


def _whole_heads(config: Fields) -> None:
    """Accept a redundant ``head_dim``, which older configurations of Sarvam have."""
    rank, n_rot = config.integer("kv_lora_rank", 512), config.integer("qk_rope_head_dim", 64)
    if (found := config.integer("head_dim", n_rot)) not in (n_rot, rank + n_rot):
        raise UnsupportedError(f"[convert] unsupported 'head_dim': {found} (expected {n_rot} or {rank + n_rot})")


HF = {
    "YoutuForCausalLM": replace(
        _V3,
        keys={
            **_DENSE,
            "leading_dense_block_count": u32("num_hidden_layers"),
            "expert_shared_count": computed("u32", lambda config: 0),
            "expert_feed_forward_length": u32("intermediate_size"),
        },
        tensors=LATENT_TENSORS,
        fixed={name: values for name, values in _V3.fixed.items() if name not in ("scoring_func", "topk_method")},
        tied=True,
        predicting=None,
        unused=(*_V3.unused, "mlp_bias", "embedding_initializer_range"),
    ),
    "SarvamMLAForCausalLM": replace(
        _V3,
        keys={
            **_V3.keys,
            "expert_count": u32("n_routed_experts", "num_experts", "num_local_experts", default=128),
            "expert_shared_count": u32("n_shared_experts", "num_shared_experts", default=1),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "leading_dense_block_count": u32("first_k_dense_replace", default=1),
        },
        fixed={**_V3.fixed, "moe_router_enable_expert_bias": (True,), "score_function": ("sigmoid",)},
        checks=(deepseek2.all_heads, _whole_heads),
        predicting=None,
        unused=(*_V3.unused, "q_head_dim"),
    ),
}
