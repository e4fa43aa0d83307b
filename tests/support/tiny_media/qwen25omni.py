"""The thinker of Qwen2.5-Omni: images and sounds in one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily
from .qwen2vl import PROCESSOR as IMAGES
from .qwen2vl import TEXT, VISION, processed
from .whisper import ENCODER, PROCESSOR, frames, halved

MARKS = (
    "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<|vision_bos|>", "<|IMAGE|>", "<|vision_eos|>", "<|VIDEO|>",
    "<|im_start|>", "<|im_end|>",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IDS = {
    "image_token_id": "<|IMAGE|>", "audio_token_id": "<|AUDIO|>", "video_token_id": "<|VIDEO|>",
    "vision_start_token_id": "<|vision_bos|>", "vision_end_token_id": "<|vision_eos|>",
    "audio_start_token_id": "<|audio_bos|>", "audio_end_token_id": "<|audio_eos|>",
}  # fmt: skip


def mark_id(text: str) -> int:
    return FIRST_MARK + MARKS.index(text)


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(12)
    config = transformers.Qwen2_5OmniThinkerConfig(
        text_config=TEXT,
        vision_config={
            **VISION, "hidden_size": 64, "intermediate_size": 100, "out_hidden_size": 64, "window_size": 32,
            "fullatt_block_indexes": [1, 3],
        },
        audio_config={**ENCODER, "output_dim": 64}, **{name: mark_id(text) for name, text in IDS.items()},
    )  # fmt: skip
    return halved(transformers.Qwen2_5OmniThinkerForConditionalGeneration(config).eval())


def sounds_of(sounds: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the spectrograms of sounds, which end where the longest does."""
    import torch

    found = [frames(samples) for samples in sounds]
    mask = torch.tensor([[1] * n_real + [0] * (3000 - n_real) for _, n_real in found])
    return {"input_features": torch.cat([each for each, _ in found]), "feature_attention_mask": mask}


def inputs(model: Any, tokens: Any, items: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return what transformers takes for images ``[height, width, 3]`` and sounds ``[samples]``."""
    images, sounds = ([item for item in items if item.ndim == n] for n in (3, 1))
    return {**(processed(images) if images else {}), **(sounds_of(sounds) if sounds else {})}


def encoded(model: Any, item: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    found = inputs(model, None, [item])
    output = model.get_image_features(**found) if item.ndim == 3 else model.get_audio_features(**found)
    rows = output.pooler_output
    return np.asarray(rows[0] if isinstance(rows, (tuple, list)) else rows)


FAMILY = TinyFamily(make, MARKS, "<|AUDIO|>", TEMPLATE, {**PROCESSOR, **IMAGES}, inputs, encoded)
