"""Qwen2-VL (Wang et al. 2024) and Qwen2.5-VL (Bai et al. 2025), text: Qwen2 with three-part positions.

Text tokens have the same position in time, height and width, so their rotation is plain RoPE.
"""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, no_windows
from ..checkpoints.mapping.rope import mrope_keys
from ..nn import Keys, Weights
from .qwen2 import Qwen2

ARCHES = ("qwen2vl",)


class Qwen2VL(Qwen2):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        keys.without_effect("rope.dimension_sections")  # for images only
        super().__init__(keys, weights, n_vocab)


MODEL = Qwen2VL

# --- checkpoint ---

_CHECKPOINT = Checkpoint(
    "qwen2vl",
    DECODER_KEYS,
    DECODER_TENSORS,
    fixed={"hidden_act": SILU},
    checks=(no_windows,),
    rope=mrope_keys(1e6),
    section="text_config",
    unused=("vision_config", "head_dim"),  # the size of a head is always hidden_size / num_attention_heads
    ignored=("visual.*", "model.visual.*"),
)
HF = {"Qwen2VLForConditionalGeneration": _CHECKPOINT, "Qwen2_5_VLForConditionalGeneration": _CHECKPOINT}
