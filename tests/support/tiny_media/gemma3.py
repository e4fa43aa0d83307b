"""Gemma 3 with a short window, so that images reach beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from quire.media import View, open_processor

from . import FIRST_MARK, TinyFamily, randomized

MARKS = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<image_soft_token>", "<end_of_image>")
TEMPLATE = (
    "{% for message in messages %}<start_of_turn>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Gemma3ImageProcessorFast",
    "size": {"height": 140, "width": 140},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
}


def mark_id(text: str) -> int:
    return FIRST_MARK + MARKS.index(text)


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.Gemma3Config(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 32,
            "max_position_embeddings": 2048, "sliding_window": 11,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 3,
            "image_size": 140, "patch_size": 14, "vision_use_head": False,
        },
        mm_tokens_per_image=25, boi_token_index=mark_id("<start_of_image>"), eoi_token_index=mark_id("<end_of_image>"),
        image_token_index=mark_id("<image_soft_token>"),
    )  # fmt: skip
    model = randomized(transformers.Gemma3ForConditionalGeneration(config).eval())
    with torch.no_grad():
        for weight in model.model.vision_tower.parameters():  # which are large in a fresh model already
            if weight.ndim > 1:
                weight.div_(4)
        model.model.multi_modal_projector.mm_input_projection_weight.normal_(std=0.3)
    return model


def view_of(image: npt.NDArray[Any]) -> View:
    """Return an image's patches; other tests show that they equal those of transformers."""
    return open_processor(PROCESSOR, patch_size=14, merge=2).process(image).views[0]


def pixels(images: Sequence[npt.NDArray[Any]]) -> Any:
    """Return pixels as transformers takes them, ``[images, 3, height, width]``."""
    import torch

    split = np.stack([view_of(image).patches for image in images]).reshape(len(images), 10, 10, 3, 14, 14)
    return torch.from_numpy(np.ascontiguousarray(split.transpose(0, 3, 1, 4, 2, 5)).reshape(len(images), 3, 140, 140))


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    return {"token_type_ids": (tokens == FAMILY.pad_id).int(), "pixel_values": pixels(images)}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = model.get_image_features(pixels([image])).pooler_output[0].numpy()
    return rows


FAMILY = TinyFamily(make, MARKS, "<image_soft_token>", TEMPLATE, PROCESSOR, inputs, encoded)
