"""DeepSeek-OCR and its successors (DeepSeek-AI 2025), text: DeepSeek MoE with RoPE on halves."""

from __future__ import annotations

from typing import ClassVar

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Checkpoint,
    factor,
    flag,
    no_windows,
    u32,
)
from ..nn import ROUTING, Keys, Weights
from ..nn.rotary import Layout
from . import deepseek

ARCHES = ("deepseek2-ocr",)


class DeepSeekOcr(deepseek.DeepSeek):
    READS: ClassVar[tuple[str, ...]] = ROUTING
    LAYOUT: ClassVar[Layout] = "half"
    ROTATES_ALL: ClassVar[bool] = True  # files have a rope.dimension_count of 0, after the latent attention it lacks

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        keys.without_effect("attention.sliding_window")  # Unlimited-OCR's; its decoder has none in llama.cpp either
        super().__init__(keys, weights, n_vocab)


MODEL = DeepSeekOcr

# --- checkpoint ---

_TEXT = Checkpoint(
    "deepseek2-ocr",
    {
        **DECODER_KEYS,
        "expert_count": u32("n_routed_experts"),
        "expert_used_count": u32("num_experts_per_tok"),
        "expert_feed_forward_length": u32("moe_intermediate_size"),
        "expert_shared_count": u32("n_shared_experts"),
        "expert_weights_norm": flag("norm_topk_prob", default=False),
        "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
        "leading_dense_block_count": u32("first_k_dense_replace", default=0),
    },
    {**DECODER_TENSORS, **EXPERT_TENSORS, **SHARED_EXPERT_TENSORS},
    fixed={
        "hidden_act": SILU,
        "use_mla": (False,),
        "kv_lora_rank": (None,),
        "q_lora_rank": (None,),
        "scoring_func": ("softmax",),
        "topk_method": ("greedy",),
        "attention_bias": (False,),
    },
    checks=(no_windows,),
    unused=(
        "language_config", "vision_config", "projector_config", "candidate_resolutions", "global_view_pos", "tile_tag",
        "lm_head", "rm_head", "n_group", "topk_group", "qk_*_head_dim", "v_head_dim", "aux_loss_alpha", "seq_aux",
        "moe_layer_freq", "ep_size",
    ),
    ignored=(
        "model.sam_model.*", "model.vision_model.*", "model.qwen2_model.*", "model.projector.*", "model.image_newline",
        "model.view_seperator",
    ),
)  # fmt: skip
HF = {"DeepseekOCRForCausalLM": _TEXT, "DeepseekOCR2ForCausalLM": _TEXT}
