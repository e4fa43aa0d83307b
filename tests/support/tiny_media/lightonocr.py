"""LightOnOCR: Pixtral's encoder without tokens for rows, and Qwen3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, randomized
from .pixtral import FAMILY as PIXTRAL
from .pixtral import MERGE, PATCH, TEXT, VISION, processed

MARKS = ("<|image_pad|>", "<|vision_pad|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|image_pad|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(9)
    text = {name: value for name, value in TEXT.items() if name != "sliding_window"}
    config = transformers.LightOnOcrConfig(
        text_config={**text, "model_type": "qwen3", "rms_norm_eps": 1e-6}, vision_config=VISION,
        image_token_id=FIRST_MARK, spatial_merge_size=MERGE,
    )  # fmt: skip
    return randomized(transformers.LightOnOcrForConditionalGeneration(config).eval())


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    found = processed(images, PATCH * MERGE)
    return {"pixel_values": found["pixel_values"], "image_sizes": found["image_sizes"].tolist()}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    (rows,) = model.get_image_features(**inputs(model, None, [image]), return_dict=True).pooler_output
    return np.asarray(rows)


FAMILY = replace(
    PIXTRAL, make=make, marks=MARKS, pad="<|image_pad|>", template=TEMPLATE, inputs=inputs, encoded=encoded
)
