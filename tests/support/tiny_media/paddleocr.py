"""PaddleOCR-VL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

MARKS = ("<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>", "<|video_pad|>")
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}Assistant: {% endif %}"
)
PROCESSOR = {
    "image_processor_type": "PaddleOCRVLImageProcessor",
    "patch_size": 8,
    "temporal_patch_size": 1,
    "merge_size": 2,
    "min_pixels": 512,
    "max_pixels": 16384,
}
TEXT = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 2048, "pad_token_id": 258,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 6, 6]},
}  # fmt: skip
VISION = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 48,
    "patch_size": 8,
}  # fmt: skip


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(13)
    config = transformers.PaddleOCRVLConfig(
        text_config=TEXT, vision_config=VISION, image_token_id=FIRST_MARK + 1, video_token_id=FIRST_MARK + 3,
        vision_start_token_id=FIRST_MARK, vision_end_token_id=FIRST_MARK + 2,
    )  # fmt: skip
    return randomized(transformers.PaddleOCRVLForConditionalGeneration(config).eval())


def processed(images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the patches and the grids of images, by transformers' processor."""
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil

    settings = {name: value for name, value in PROCESSOR.items() if name != "image_processor_type"}
    return dict(PaddleOCRVLImageProcessorPil(**settings)(list(images), return_tensors="pt"))


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    return {"mm_token_type_ids": (tokens == FAMILY.pad_id).int(), **processed(images)}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    (rows,) = model.model.get_image_features(**processed([image]), return_dict=True).pooler_output
    return np.asarray(rows)


FAMILY = TinyFamily(make, MARKS, "<|IMAGE_PLACEHOLDER|>", TEMPLATE, PROCESSOR, inputs, encoded)
