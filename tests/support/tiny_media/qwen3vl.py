"""Qwen3-VL with two deep-stack layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from quire.media import View, open_processor

from . import FIRST_MARK, TinyFamily, randomized

MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>", "<|video_pad|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 65536},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def mark_id(text: str) -> int:
    return FIRST_MARK + MARKS.index(text)


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
            "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        vision_config={
            "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
            "num_position_embeddings": 144, "deepstack_visual_indexes": [1, 2],
        },
        image_token_id=mark_id("<|image_pad|>"), video_token_id=mark_id("<|video_pad|>"),
        vision_start_token_id=mark_id("<|vision_start|>"), vision_end_token_id=mark_id("<|vision_end|>"),
    )  # fmt: skip
    return randomized(transformers.Qwen3VLForConditionalGeneration(config).eval())


def view_of(image: npt.NDArray[Any]) -> View:
    """Return an image's patches; other tests show that they equal those of transformers."""
    return open_processor(PROCESSOR, patch_size=16, merge=2).process(image).views[0]


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import torch

    views = [view_of(image) for image in images]
    return {
        "mm_token_type_ids": (tokens == FAMILY.pad_id).int(),
        "pixel_values": torch.from_numpy(np.concatenate([view.patches for view in views])),
        "image_grid_thw": torch.tensor([[1, view.n_rows, view.n_cols] for view in views]),
    }


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    import torch

    view = view_of(image)
    output = model.model.visual(torch.from_numpy(view.patches), torch.tensor([[1, view.n_rows, view.n_cols]]))
    rows: npt.NDArray[np.float32] = torch.cat([output.pooler_output, *output.deepstack_features], dim=1).numpy()
    return rows


FAMILY = TinyFamily(make, MARKS, "<|image_pad|>", TEMPLATE, PROCESSOR, inputs, encoded)
