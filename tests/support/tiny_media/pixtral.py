"""Mistral Small 3.1: Pixtral's encoder with merged patches, and Mistral."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

PATCH, MERGE = 8, 2
MARKS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ message.content }}{{ eos_token }}{% else %}[INST]"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}[IMG]{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}[/INST]{% endif %}{% endfor %}"
)
PROCESSOR = {
    "image_processor_type": "PixtralImageProcessorFast",
    "patch_size": PATCH,
    "size": {"longest_edge": 128},
}
TEXT = {
    "model_type": "mistral", "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "sliding_window": None,
}  # fmt: skip
VISION = {
    "model_type": "pixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 2, "head_dim": 32, "image_size": 1024, "patch_size": PATCH, "hidden_act": "silu",
}  # fmt: skip


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.Mistral3Config(
        text_config=TEXT, vision_config=VISION, image_token_index=FIRST_MARK, spatial_merge_size=MERGE,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = randomized(transformers.Mistral3ForConditionalGeneration(config).eval())
    keep_rows(model)
    return model


def keep_rows(model: Any) -> None:
    """Let transformers read images of one token: it removes a first dimension of 1, which should be the batch's."""
    model.model.multi_modal_projector.register_forward_hook(lambda module, args, rows: rows[None])


def processed(images: Sequence[npt.NDArray[Any]], unit: int) -> Mapping[str, Any]:
    """Return the pixels and the sizes of images, by transformers' processor; sides are multiples of ``unit``."""
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    processor = PixtralImageProcessorPil(size=PROCESSOR["size"], patch_size=unit)
    found: Mapping[str, Any] = processor(list(images), return_tensors="pt")
    return found


def inputs_of(model: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    found = processed(images, PATCH * getattr(model.config, "spatial_merge_size", 1))
    return {"pixel_values": found["pixel_values"], "image_sizes": found["image_sizes"]}


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the inputs, and check that the prompt has the tokens that transformers writes for the images."""
    found = inputs_of(model, images)
    unit = PATCH * getattr(model.config, "spatial_merge_size", 1)
    image, line_break, end = (FIRST_MARK + i for i in range(3))
    expected = []
    for height, width in found["image_sizes"].tolist():
        n_rows, n_cols = height // unit, width // unit
        expected += ([image] * n_cols + [line_break]) * n_rows
        expected[-1] = end
    assert [token for token in tokens[0].tolist() if token in (image, line_break, end)] == expected
    return found


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    import torch

    (rows,) = model.get_image_features(**inputs_of(model, [image]), return_dict=True).pooler_output
    return np.asarray(rows.detach() if isinstance(rows, torch.Tensor) else rows)


FAMILY = TinyFamily(make, MARKS, "[IMG]", TEMPLATE, PROCESSOR, inputs, encoded)
