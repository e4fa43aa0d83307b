"""Qwen3-VL (Bai et al. 2025): Qwen3 whose positions are places in time, height and width.

Text has the same place on all three, which is its position.  The vision encoder is in ``vision/qwen3vl.py``.
"""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, tensor, u32
from ..checkpoints.mapping.rope import mrope_keys
from ..nn import Keys, Weights
from .qwen3 import HEADS, QK_NORMS, Qwen3

ARCHES = ("qwen3vl",)


class Qwen3VL(Qwen3):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        keys.without_effect("n_deepstack_layers")  # the vision encoder has as many
        super().__init__(keys, weights, n_vocab)

    def turns(self, keys: Keys) -> list[int]:
        return keys.integers("rope.dimension_sections", 3) if keys.has("rope.dimension_sections") else []


MODEL = Qwen3VL

# --- checkpoint ---

_TENSORS = {
    ours: tensor(str(theirs).replace("model.", "model.language_model.", 1))
    for ours, theirs in {**DECODER_TENSORS, **QK_NORMS}.items()
}
HF = {
    "Qwen3VLForConditionalGeneration": Checkpoint(
        "qwen3vl",
        {**DECODER_KEYS, **HEADS, "attention.head_count_kv": u32("num_key_value_heads", default=32)},
        _TENSORS,
        fixed={"hidden_act": SILU},
        rope=mrope_keys(500000.0),
        section="text_config",
        base="model.language_model.",
        unused=("attention_bias", "vision_config"),
        ignored=("model.visual.*", "visual.*"),
    )
}
