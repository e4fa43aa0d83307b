"""Qwen2-VL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized
from .qwen3vl import MARKS, TEMPLATE

PATCH = 8
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 256,
    "max_pixels": 16384,
}
TEXT = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]},
}  # fmt: skip
VISION = {"depth": 5, "num_heads": 2, "patch_size": PATCH}
IDS = {
    name: FIRST_MARK + MARKS.index(text)
    for name, text in (
        ("image_token_id", "<|image_pad|>"),
        ("video_token_id", "<|video_pad|>"),
        ("vision_start_token_id", "<|vision_start|>"),
        ("vision_end_token_id", "<|vision_end|>"),
    )
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.Qwen2VLConfig(
        text_config=TEXT, vision_config={**VISION, "embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2}, **IDS
    )
    return randomized(transformers.Qwen2VLForConditionalGeneration(config).eval())


def processed(images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the patches and the grids of images, by transformers' processor."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = {name: value for name, value in PROCESSOR.items() if name != "image_processor_type"}
    return dict(Qwen2VLImageProcessorPil(**settings)(list(images), return_tensors="pt"))


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    return {"mm_token_type_ids": (tokens == FAMILY.pad_id).int(), **processed(images)}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    found = processed([image])
    rows: npt.NDArray[np.float32] = model.model.visual(found["pixel_values"], found["image_grid_thw"]).pooler_output
    return np.asarray(rows)


FAMILY = TinyFamily(make, MARKS, "<|image_pad|>", TEMPLATE, PROCESSOR, inputs, encoded)
