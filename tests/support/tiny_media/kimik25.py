"""Kimi K2.5 with at most 256 patches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

MARKS = (
    "<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|im_user|>", "<|im_assistant|>",
    "<|im_middle|>", "<|im_end|>",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Kimi_K25ImageProcessor",
    "max_patches": 256,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(13)
    config = transformers.Kimi_K25Config(
        text_config={
            "model_type": "deepseek_v3", "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24,
            "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
            "moe_intermediate_size": 24, "first_k_dense_replace": 1, "max_position_embeddings": 2048,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 3,
            "pos_emb_height": 6, "pos_emb_width": 6,
        },
        projection_hidden_size=48, image_token_id=FIRST_MARK,
    )  # fmt: skip
    return randomized(transformers.Kimi_K25ForConditionalGeneration(config).eval())


def processor() -> Any:
    from quire.media import open_processor

    return open_processor(PROCESSOR, patch_size=14, merge=2)


class Prompter:
    """transformers' processor, whose image processor needs torchvision: the number of tokens is Quire's."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def apply_chat_template(self, chat: Any, **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(chat, **options))

    def __call__(self, text: list[str], images: list[Any], **options: Any) -> Any:
        first, *others = text[0].split("<|media_pad|>")
        for image, other in zip(images, others, strict=True):
            first += "<|media_pad|>" * processor().layout(image.height, image.width).n_tokens[0] + other
        return self.tokenizer([first], **options)


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import torch

    views = [processor().process(image).views[0] for image in images]
    patches = np.concatenate([view.patches for view in views]).reshape(-1, 3, 14, 14)
    return {
        "pixel_values": torch.from_numpy(patches),
        "image_grid_thw": torch.tensor([[1, view.n_rows, view.n_cols] for view in views]),
    }


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    output = model.model.get_image_features(**inputs(model, None, [image])).pooler_output
    rows: npt.NDArray[np.float32] = np.concatenate([part.numpy().reshape(-1, 64) for part in output])
    return rows


# transformers' names in saved files, and those in published ones.
NAMES = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.", "model.mm_projector.": "mm_projector.",
}  # fmt: skip


class Family(TinyFamily):
    def save(self, model: Any, folder: Path) -> None:
        """Save a model as published, with Moonshot AI's names of tensors."""
        from safetensors.torch import load_file, save_file

        super().save(model, folder)
        tensors = load_file(folder / "model.safetensors")
        for theirs, ours in NAMES.items():
            tensors = {name.replace(theirs, ours): tensor for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


FAMILY = Family(make, MARKS, "<|media_pad|>", TEMPLATE, PROCESSOR, inputs, encoded, prompter=Prompter)
