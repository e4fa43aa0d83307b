"""LLaVA 1.5 with images of 112 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

MARKS = ("<image>",)
TEMPLATE = (
    "{% for message in messages %}{{ message.role.upper() }}: "
    "{% if message.content is string %}{{ message.content }} {% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>\n"
    "{% elif part.type == 'text' %}{{ part.text }} {% endif %}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 112},
    "crop_size": {"height": 112, "width": 112},
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(8)
    config = transformers.LlavaConfig(
        text_config={
            "model_type": "llama", "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
        },
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 4,
            "num_attention_heads": 3, "image_size": 112, "patch_size": 14, "projection_dim": 32,
        },
        image_token_id=FIRST_MARK, image_seq_length=64,
    )  # fmt: skip
    model = randomized(transformers.LlavaForConditionalGeneration(config).eval())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "class_embedding" in name or "position_embedding" in name:
                weight.add_(torch.randn_like(weight) * 0.3)
    return model


def image_processor() -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPImageProcessorPil(**{name: value for name, value in PROCESSOR.items() if name[-4:] != "type"})


def processor(folder: Path) -> Any:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.LlavaProcessor(
        image_processor(), tokenizer, patch_size=14, vision_feature_select_strategy="default",
        chat_template=TEMPLATE, num_additional_image_tokens=1,
    )  # fmt: skip


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    from PIL import Image

    pictures = [Image.fromarray(image) for image in images]
    return {"pixel_values": image_processor()(pictures, return_tensors="pt")["pixel_values"]}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    output = model.model.get_image_features(
        **inputs(model, None, [image]), vision_feature_layer=-2, vision_feature_select_strategy="default"
    )
    rows: npt.NDArray[np.float32] = np.concatenate([tile.numpy().reshape(-1, 64) for tile in output.pooler_output])
    return rows


FAMILY = TinyFamily(make, MARKS, "<image>", TEMPLATE, PROCESSOR, inputs, encoded, prompter=processor)
