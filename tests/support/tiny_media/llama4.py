"""Llama 4 with tiles of 56 pixels, at most four."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

MARKS = (
    "<|patch|>", "<|image|>", "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
    "<|header_start|>", "<|header_end|>", "<|eot|>",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|header_start|>{{ message.role }}<|header_end|>\n\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|image|>{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|header_start|>assistant<|header_end|>\n\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Llama4ImageProcessorFast",
    "size": {"height": 56, "width": 56},
    "max_patches": 4,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(12)
    config = transformers.Llama4Config(
        text_config={
            "vocab_size": 272, "hidden_size": 64, "intermediate_size": 32, "intermediate_size_mlp": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "num_local_experts": 4, "num_experts_per_tok": 1, "max_position_embeddings": 2048,
            "interleave_moe_layer_step": 2, "attention_chunk_size": 2048,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3,
            "image_size": 56, "patch_size": 14, "projector_input_dim": 80, "projector_output_dim": 80,
            "vision_output_dim": 80, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        image_token_index=FIRST_MARK, boi_token_index=FIRST_MARK + 2, eoi_token_index=FIRST_MARK + 3,
    )  # fmt: skip
    model = randomized(transformers.Llama4ForConditionalGeneration(config).eval())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("class_embedding", "positional_embedding_vlm")):
                weight.add_(torch.randn_like(weight) * 0.3)

    def add_missing(module: Any, args: Any, output: Any) -> None:
        output.image_outputs = None  # transformers 5.24 reads it from the text model's output, which has none

    model.language_model.register_forward_hook(add_missing)
    return model


def processor() -> Any:
    from quire.media import open_processor

    return open_processor(PROCESSOR, patch_size=14, merge=2)


class Prompter:
    """transformers' processor, whose image processor needs torchvision: the grid of tiles is Quire's."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.written = transformers.Llama4Processor._prompt_split_image

    def apply_chat_template(self, chat: Any, **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(chat, **options))

    def __call__(self, text: list[str], images: list[Any], **options: Any) -> Any:
        first, *others = text[0].split("<|image|>")
        for image, other in zip(images, others, strict=True):
            layout = processor().layout(image.height, image.width)
            first += self.written(self, (max(layout.tile_rows, 1), max(layout.tile_cols, 1)), 4) + other
        return self.tokenizer([first], **options)


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import torch

    views = [view.patches for image in images for view in processor().process(image).views]
    pixels = np.stack(views).reshape(-1, 4, 4, 3, 14, 14).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 56, 56)
    return {"pixel_values": torch.from_numpy(pixels)}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    output = model.vision_model(inputs(model, None, [image])["pixel_values"])
    rows: npt.NDArray[np.float32] = model.multi_modal_projector(output.last_hidden_state).flatten(0, 1).numpy()
    return rows


FAMILY = TinyFamily(make, MARKS, "<|patch|>", TEMPLATE, PROCESSOR, inputs, encoded, prompter=Prompter)
