"""Gemma 4 as in its large sizes: images are seen both ways in windowed layers, and standardized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from quire.media import View, open_processor

from . import FIRST_MARK, TinyFamily, randomized

MARKS = ("<|turn>", "<turn|>", "<|image>", "<|image|>", "<image|>", "<|audio|>", "<|video|>")
TEMPLATE = (
    "{% for message in messages %}<|turn>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
PATCH, MERGE, MAX_TOKENS = 4, 3, 70
PROCESSOR = {
    "image_processor_type": "Gemma4ImageProcessor",
    "patch_size": PATCH,
    "pooling_kernel_size": MERGE,
    "max_soft_tokens": MAX_TOKENS,
    "do_normalize": False,
}


def mark_id(text: str) -> int:
    return FIRST_MARK + MARKS.index(text)


def make(text: Mapping[str, Any], vision: Mapping[str, Any], audio: Mapping[str, Any] | None = None) -> Any:
    """Return the model with these fields of its configurations; without ``audio``, it does not hear."""
    import torch
    import transformers

    torch.manual_seed(11)
    config = transformers.Gemma4Config(
        text_config={
            "vocab_size": 288, "vocab_size_per_layer_input": 288, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "global_head_dim": 64, "max_position_embeddings": 2048, "sliding_window": 19, "pad_token_id": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            **text,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 3,
            "num_key_value_heads": 3, "head_dim": 16, "patch_size": PATCH, "pooling_kernel_size": MERGE,
            "position_embedding_size": 400, **vision,
        },
        audio_config=audio, boi_token_id=mark_id("<|image>"), eoi_token_id=mark_id("<image|>"),
        image_token_id=mark_id("<|image|>"), audio_token_id=mark_id("<|audio|>"), video_token_id=mark_id("<|video|>"),
    )  # fmt: skip
    model = randomized(transformers.Gemma4ForConditionalGeneration(config).eval())
    tower = model.model.vision_tower
    with torch.no_grad():
        tower.patch_embedder.position_embedding_table.normal_(std=0.5)
        for name, weight in tower.named_parameters():
            if name.endswith("q_norm.weight"):  # scores are not scaled: as small as those of a trained model
                weight.mul_(0.3)
        for name, limit in tower.named_buffers():
            if name.endswith(("_min", "_max")):
                limit.fill_((-1 if name.endswith("_min") else 1) * (0.7 + 0.01 * len(name)))
            elif name.startswith("std_"):
                limit.normal_(mean=1.0, std=0.3)
        for name, limit in model.model.audio_tower.named_buffers() if audio else ():
            if name.endswith(("_min", "_max")):
                limit.fill_((-1 if name.endswith("_min") else 1) * (1.5 + 0.01 * len(name)))
    return model


def view_of(image: npt.NDArray[Any]) -> View:
    """Return an image's patches; other tests show that they equal those of transformers."""
    return open_processor(PROCESSOR, patch_size=PATCH, merge=MERGE).process(image).views[0]


def pixels(images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return patches and their columns and rows, padded as transformers' image processor pads them."""
    import torch

    n = MAX_TOKENS * MERGE**2
    values = np.zeros((len(images), n, 3 * PATCH**2), np.float32)
    places = np.full((len(images), n, 2), -1)
    for i, image in enumerate(images):
        view = view_of(image)
        values[i, : len(view.patches)] = view.patches
        rows, cols = np.mgrid[0 : view.n_rows, 0 : view.n_cols].reshape(2, -1)
        places[i, : len(rows)] = np.stack([cols, rows], axis=1)
    return {"pixel_values": torch.from_numpy(values), "image_position_ids": torch.from_numpy(places)}


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    return {"mm_token_type_ids": (tokens == mark_id("<|image|>")).int(), **pixels(images)}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = model.get_image_features(**pixels([image])).pooler_output[0].numpy()
    return rows


def make_large() -> Any:
    return make(
        {"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0},
        {"standardize": True, "use_clipped_linears": False},
    )


FAMILY = TinyFamily(make_large, MARKS, "<|image|>", TEMPLATE, PROCESSOR, inputs, encoded, max_step_tokens=80)
