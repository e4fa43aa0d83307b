"""GLM-4.1V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

MARKS = (
    "<|begin_of_image|>", "<|image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|video|>", "<|end_of_video|>",
    "<|user|>", "<|assistant|>",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|begin_of_image|><|image|><|end_of_image|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Glm4vImageProcessor",
    "patch_size": 8,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 32768},
}
TEXT = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 2048, "pad_token_id": 258,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
VISION = {
    "depth": 3, "hidden_size": 64, "num_heads": 2, "patch_size": 8, "image_size": 48, "out_hidden_size": 64,
    "intermediate_size": 80,
}  # fmt: skip
IDS = {
    name: FIRST_MARK + MARKS.index(text)
    for name, text in (
        ("image_token_id", "<|image|>"),
        ("video_token_id", "<|video|>"),
        ("image_start_token_id", "<|begin_of_image|>"),
        ("image_end_token_id", "<|end_of_image|>"),
        ("video_start_token_id", "<|begin_of_video|>"),
        ("video_end_token_id", "<|end_of_video|>"),
    )
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(10)
    config = transformers.Glm4vConfig(text_config=TEXT, vision_config=VISION, **IDS)
    return randomized(transformers.Glm4vForConditionalGeneration(config).eval())


def processed(images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the patches and the grids of images, by transformers' processor."""
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    settings = {name: value for name, value in PROCESSOR.items() if name != "image_processor_type"}
    return dict(Glm4vImageProcessorPil(**settings)(list(images), return_tensors="pt"))


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    return {"mm_token_type_ids": (tokens == FAMILY.pad_id).int(), **processed(images)}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    found = processed([image])
    return np.asarray(model.model.visual(found["pixel_values"], found["image_grid_thw"]).pooler_output)


FAMILY = TinyFamily(make, MARKS, "<|image|>", TEMPLATE, PROCESSOR, inputs, encoded)
