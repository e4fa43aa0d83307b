"""LFM2-VL with patches of 8 pixels and tiles of 64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

TILES = [f"<|img_row_{row}_col_{col}|>" for row in range(1, 7) for col in range(1, 7) if row * col <= 6]
MARKS = (
    "<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<|im_start|>", "<|im_end|>", *TILES,
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Lfm2VlImageProcessorFast",
    "encoder_patch_size": 8,
    "tile_size": 64,
    "max_tiles": 6,
    "min_image_tokens": 4,
    "max_image_tokens": 16,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(9)
    config = transformers.Lfm2VlConfig(
        text_config={
            "model_type": "lfm2", "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention", "conv"],
            "max_position_embeddings": 2048,
        },
        vision_config={
            "model_type": "siglip2_vision_model", "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2,
            "num_attention_heads": 3, "patch_size": 8, "num_patches": 36,
        },
        projector_hidden_size=80, image_token_id=FIRST_MARK,
    )  # fmt: skip
    model = randomized(transformers.Lfm2VlForConditionalGeneration(config).eval())
    with torch.no_grad():
        for name, weight in model.model.vision_tower.named_parameters():
            if weight.ndim > 1 and "position" not in name:  # drawn from a wider range than those of other encoders
                weight.mul_(0.25)
    return model


class Prompter:
    """transformers' processor, whose image processor needs torchvision: the layout of an image is Quire's."""

    image_token, image_start_token, image_end_token = "<image>", "<|image_start|>", "<|image_end|>"
    image_thumbnail_token = "<|img_thumbnail|>"

    def __init__(self, folder: Path) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.build = transformers.Lfm2VlProcessor._build_image_tokens

    def apply_chat_template(self, chat: Any, **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(chat, **options))

    def __call__(self, text: list[str], images: list[Any], **options: Any) -> Any:
        first, *others = text[0].split(self.image_token)
        for image, other in zip(images, others, strict=True):
            layout = layout_of(np.asarray(image))
            first += self.build(self, layout.tile_rows, layout.tile_cols, 16, layout.n_tokens[-1], True, True) + other
        return self.tokenizer([first], **options)


def processor() -> Any:
    from quire.media import open_processor

    return open_processor(PROCESSOR, patch_size=8, merge=2)


def layout_of(image: npt.NDArray[Any]) -> Any:
    return processor().layout(*image.shape[:2])


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import torch

    views = [view for image in images for view in processor().process(image).views]
    n = max(len(view.patches) for view in views)
    pixels, mask = torch.zeros(len(views), n, 192), torch.zeros(len(views), n, dtype=torch.int32)
    for i, view in enumerate(views):
        # transformers orders a patch's numbers by row, column and channel.
        patches = view.patches.reshape(-1, 3, 8, 8).transpose(0, 2, 3, 1).reshape(-1, 192)
        pixels[i, : len(patches)], mask[i, : len(patches)] = torch.from_numpy(patches), 1
    shapes = torch.tensor([[view.n_rows, view.n_cols] for view in views])
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    output = model.model.get_image_features(**inputs(model, None, [image]))
    rows: npt.NDArray[np.float32] = np.concatenate([view.numpy() for view in output.pooler_output])
    return rows


FAMILY = TinyFamily(make, MARKS, "<image>", TEMPLATE, PROCESSOR, inputs, encoded, has_state=True, prompter=Prompter)
