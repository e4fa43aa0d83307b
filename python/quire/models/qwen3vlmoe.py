"""Qwen3-VL with experts (Bai et al. 2025), text: see Qwen3-VL.  Checkpoints store experts stacked."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    only_experts,
    tensor,
    u32,
)
from ..checkpoints.mapping.pictures import DeepStack, thinking
from ..checkpoints.mapping.rope import mrope_keys
from ..nn import Keys, Weights
from .qwen3 import QK_NORMS
from .qwen3moe import Qwen3Moe

ARCHES = ("qwen3vlmoe",)


class Qwen3VLMoe(Qwen3Moe):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        keys.without_effect("n_deepstack_layers")  # the vision encoder has the same number of them
        sections = keys.integers("rope.dimension_sections", 3) if keys.has("rope.dimension_sections") else []
        super().__init__(keys, weights, n_vocab, sections)


MODEL = Qwen3VLMoe

# --- checkpoint ---


def _outputs(x: Array, n_out: int, n_in: int) -> Array:
    """Return ``[expert, out, in]``; published checkpoints store ``[expert, in, out]``."""
    return x if x.shape[1:] == (n_out, n_in) else x.swapaxes(1, 2).copy()


def _half(begin: int) -> Change:
    """Take gate (``begin`` 0) or up (1) from their fused tensor."""

    def change(x: Array, config: Fields) -> Array:
        n = config.integer("moe_intermediate_size", 1408)
        return _outputs(x, 2 * n, config.integer("hidden_size"))[:, begin * n : (begin + 1) * n]

    return change


def _down(x: Array, config: Fields) -> Array:
    return _outputs(x, config.integer("hidden_size"), config.integer("moe_intermediate_size", 1408))


_LAYER = "model.language_model.layers.{i}.mlp"
_OMNI = thinking(
    Checkpoint(
        "qwen3vlmoe",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": u32("num_key_value_heads", default=4),
            "expert_count": u32("num_experts", "num_local_experts", default=128),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=768),
            "n_deepstack_layers": u32("n_deepstack_layers", default=None),
        },
        {**DECODER_TENSORS, **QK_NORMS, **EXPERT_TENSORS},
        fixed={"hidden_act": SILU, "norm_topk_prob": (True,)},
        checks=(only_experts,),
        rope=mrope_keys(1e6),
        unused=("attention_bias", "sliding_window", "shared_expert_intermediate_size"),
    )
)
HF = {
    "Qwen3VLMoeForConditionalGeneration": DeepStack(
        "qwen3vlmoe",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": u32("num_key_value_heads", default=16),
            "expert_count": u32("num_experts", "num_local_experts", default=60),
            "expert_used_count": u32("num_experts_per_tok", default=4),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1408),
            "n_deepstack_layers": u32("n_deepstack_layers", default=None),
        },
        {
            **{
                ours: tensor(str(theirs).replace("model.", "model.language_model.", 1))
                for ours, theirs in {**DECODER_TENSORS, **QK_NORMS}.items()
            },
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.gate",
            "blk.{i}.ffn_gate_exps.weight": tensor(f"{_LAYER}.experts.gate_up_proj", change=_half(0)),
            "blk.{i}.ffn_up_exps.weight": tensor(f"{_LAYER}.experts.gate_up_proj", change=_half(1)),
            "blk.{i}.ffn_down_exps.weight": tensor(f"{_LAYER}.experts.down_proj", change=_down),
        },
        fixed={"hidden_act": SILU},
        checks=(only_experts,),
        rope=mrope_keys(500000.0),
        section="text_config",
        base="model.language_model.",
        # Expert weights are always normalized; the other fields concern images.
        unused=("attention_bias", "norm_topk_prob", "vision_config"),
        ignored=("model.visual.*", "visual.*"),
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": _OMNI,
    "Qwen3OmniMoeForConditionalGeneration": _OMNI,
}
