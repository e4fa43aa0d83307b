"""Qwen2-VL (Wang et al. 2024) and Qwen2.5-VL (Bai et al. 2025): Qwen2 with positions in time, height and width.

The three positions of a text token are equal.  The vision encoder is in ``media/qwen2vl.py``.
"""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, no_windows
from ..checkpoints.mapping.pictures import retrieving, thinking
from ..checkpoints.mapping.rope import mrope_keys
from ..nn import Keys, RopeSpec, Weight, rope_spec
from .base import DenseConfig
from .qwen2 import Qwen2

ARCHES = ("qwen2vl",)


class Qwen2VL(Qwen2):
    def rotation(self, keys: Keys, config: DenseConfig, factors: Weight | None) -> RopeSpec:
        sections = keys.integers("rope.dimension_sections", 3) if keys.has("rope.dimension_sections") else []
        return rope_spec(keys, n_dims=config.n_rot, layout="half", factors=factors, sections=sections, take_turns=False)


MODEL = Qwen2VL

# --- checkpoint ---

_CHECKPOINT = Checkpoint(
    "qwen2vl",
    DECODER_KEYS,
    DECODER_TENSORS,
    fixed={"hidden_act": SILU},
    checks=(no_windows,),
    rope=mrope_keys(1e6, (16, 24, 24)),
    section="text_config",
    unused=("vision_config", "head_dim"),  # the size of a head is always hidden_size / num_attention_heads
    ignored=("visual.*", "model.visual.*"),
)
_OMNI = thinking(
    Checkpoint(
        "qwen2vl",
        DECODER_KEYS,
        DECODER_TENSORS,
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        rope=mrope_keys(1e6, (16, 24, 24)),
        unused=("head_dim", "init_std"),
    )
)
HF = {
    "Qwen2VLForConditionalGeneration": _CHECKPOINT,
    "Qwen2_5_VLForConditionalGeneration": _CHECKPOINT,
    "Qwen2_5OmniThinkerForConditionalGeneration": _OMNI,
    "Qwen2_5OmniForConditionalGeneration": _OMNI,
    "Qwen2_5OmniModel": _OMNI,
    "ColQwen2ForRetrieval": retrieving(_CHECKPOINT, "qwen2_vl"),
}
