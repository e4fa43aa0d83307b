"""InternVL with tiles of 84 pixels, at most six."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

MARKS = ("<IMG_CONTEXT>", "<img>", "</img>", "<|im_start|>", "<|im_end|>", "<video>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<IMG_CONTEXT>\n{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "GotOcr2ImageProcessorFast",
    "crop_to_patches": False,
    "min_patches": 1,
    "max_patches": 6,
    "size": {"height": 84, "width": 84},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(6)
    config = transformers.InternVLConfig(
        text_config={
            "model_type": "qwen2", "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 4, "num_attention_heads": 3,
            "image_size": [84, 84], "patch_size": [14, 14], "attention_bias": True,
            "architectures": ["InternVisionModel"],
        },
        image_token_id=FIRST_MARK, image_seq_length=9,
    )  # fmt: skip
    model = randomized(transformers.InternVLForConditionalGeneration(config).eval())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("cls_token", "position_embeddings", "lambda_1", "lambda_2")):
                weight.add_(torch.randn_like(weight) * 0.3)
    return model


def image_processor() -> Any:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    return GotOcr2ImageProcessorPil(**{name: value for name, value in PROCESSOR.items() if name[-4:] != "type"})


class Prompter:
    """transformers' processor, which cannot be built without its processor of videos."""

    start_image_token, end_image_token, image_token, image_seq_length = "<img>", "</img>", "<IMG_CONTEXT>", 9

    def __init__(self, folder: Path) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.replace = transformers.InternVLProcessor.replace_image_token

    def apply_chat_template(self, chat: Any, **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(chat, **options))

    def __call__(self, text: list[str], images: list[Any], **options: Any) -> Any:
        sizes = {"num_patches": image_processor()(images, crop_to_patches=True, return_tensors="np")["num_patches"]}
        first, *others = text[0].split(self.image_token)
        for i, other in enumerate(others):
            first += self.replace(self, sizes, i) + other
        return self.tokenizer([first], **options)


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    from PIL import Image

    pictures = [Image.fromarray(image) for image in images]
    return {"pixel_values": image_processor()(pictures, crop_to_patches=True, return_tensors="pt")["pixel_values"]}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    output = model.model.get_image_features(
        **inputs(model, None, [image]), vision_feature_layer=-1, vision_feature_select_strategy="default"
    )
    rows: npt.NDArray[np.float32] = output.pooler_output.flatten(0, 1).numpy()
    return rows


FAMILY = TinyFamily(make, MARKS, "<IMG_CONTEXT>", TEMPLATE, PROCESSOR, inputs, encoded, prompter=Prompter)
