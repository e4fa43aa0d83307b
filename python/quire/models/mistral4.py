"""Mistral 4 (Mistral AI 2026): DeepSeek V3's attention, queries that grow with their position, softmax routing."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, computed, factor, flag, half, tensor, u32
from ..checkpoints.mapping.rope import rope_of
from . import deepseek2

ARCHES = ("mistral4",)
MODEL = deepseek2.DeepSeek2

# --- checkpoint ---


def _beta(config: Fields) -> float:
    return rope_of(config).number("llama_4_scaling_beta")


def _n_ctx_orig(config: Fields) -> int:
    return rope_of(config).integer("original_max_position_embeddings", low=1)


_LAYER = "model.layers.{i}"
_TEXT = Checkpoint(
    "mistral4",
    {
        **deepseek2.LATENT_KEYS,
        **deepseek2.EXPERT_KEYS,
        "attention.q_lora_rank": deepseek2.q_rank(1024),
        "attention.kv_lora_rank": u32("kv_lora_rank", default=256, low=1),
        "attention.temperature_scale": computed("f32", _beta),
        "attention.temperature_length": computed("u32", _n_ctx_orig),
        "expert_count": u32("n_routed_experts", "num_local_experts", default=128),
        "expert_used_count": u32("num_experts_per_tok", default=4),
        "expert_shared_count": u32("n_shared_experts", default=1),
        "expert_feed_forward_length": u32("moe_intermediate_size", default=2048),
        "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
        "expert_weights_norm": flag("norm_topk_prob", default=True),
        "expert_gating_func": computed("u32", lambda config: 1),
    },
    {
        **deepseek2.LATENT_TENSORS,
        **deepseek2.SHARED_TENSORS,
        "blk.{i}.ffn_gate_exps.weight": tensor(f"{_LAYER}.mlp.experts.gate_up_proj", change=half(0)),
        "blk.{i}.ffn_up_exps.weight": tensor(f"{_LAYER}.mlp.experts.gate_up_proj", change=half(1)),
        "blk.{i}.ffn_down_exps.weight": f"{_LAYER}.mlp.experts.down_proj",
    },
    fixed={**deepseek2.FIXED, "n_group": (1, None), "topk_group": (1, None), "rope_interleave": (True,)},
    checks=(deepseek2.all_heads,),
    rope=deepseek2.rope,
    unused=deepseek2.UNUSED,
)
HF = {"Mistral4ForCausalLM": _TEXT}
