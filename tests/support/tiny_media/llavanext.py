"""LLaVA 1.6 with tiles of 56 pixels, at most four."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, llava, randomized

GRIDS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
PROCESSOR = {
    "image_processor_type": "LlavaNextImageProcessor",
    "size": {"shortest_edge": 56},
    "crop_size": {"height": 56, "width": 56},
    "image_grid_pinpoints": GRIDS,
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(10)
    config = transformers.LlavaNextConfig(
        text_config={
            "model_type": "llama", "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
        },
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3,
            "num_attention_heads": 3, "image_size": 56, "patch_size": 14, "projection_dim": 32,
        },
        image_token_index=FIRST_MARK, image_seq_length=16, image_grid_pinpoints=GRIDS,
    )  # fmt: skip
    return randomized(transformers.LlavaNextForConditionalGeneration(config).eval())


def image_processor() -> Any:
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    return LlavaNextImageProcessorPil(**{name: value for name, value in PROCESSOR.items() if name[-4:] != "type"})


def processor(folder: Path) -> Any:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.LlavaNextProcessor(
        image_processor(), tokenizer, patch_size=14, vision_feature_select_strategy="default",
        chat_template=llava.TEMPLATE, num_additional_image_tokens=1,
    )  # fmt: skip


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    from PIL import Image

    found: dict[str, Any] = dict(image_processor()([Image.fromarray(image) for image in images], return_tensors="pt"))
    return {name: found[name] for name in ("pixel_values", "image_sizes")}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    (rows,) = model.model.get_image_features(**inputs(model, None, [image])).pooler_output
    found: npt.NDArray[np.float32] = rows.numpy()
    return found


FAMILY = replace(
    llava.FAMILY, make=make, processor=PROCESSOR, inputs=inputs, encoded=encoded, prompter=processor,
)  # fmt: skip
