"""The thinker of Qwen3-Omni: two deep-stack layers, experts, images and sounds in one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK
from .qwen3vl import PROCESSOR as IMAGES
from .qwen3vl import view_of
from .qwen25omni import FAMILY as QWEN25OMNI
from .qwen25omni import IDS
from .whisper import N_MELS, PROCESSOR, halved

# The marks of Qwen2.5-Omni have other texts here.
TEXTS = {
    "<|audio_bos|>": "<|audio_start|>", "<|AUDIO|>": "<|audio_pad|>", "<|audio_eos|>": "<|audio_end|>",
    "<|vision_bos|>": "<|vision_start|>", "<|IMAGE|>": "<|image_pad|>", "<|vision_eos|>": "<|vision_end|>",
    "<|VIDEO|>": "<|video_pad|>",
}  # fmt: skip
MARKS = tuple(TEXTS.get(text, text) for text in QWEN25OMNI.marks)


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(13)
    config = transformers.Qwen3OmniMoeThinkerConfig(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
            "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
            "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        vision_config={
            "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
            "num_position_embeddings": 144, "deepstack_visual_indexes": [1, 2],
        },
        audio_config={
            "d_model": 48, "encoder_layers": 3, "encoder_attention_heads": 3, "encoder_ffn_dim": 64,
            "num_mel_bins": N_MELS, "output_dim": 64, "downsample_hidden_size": 12,
        },
        **{name: FIRST_MARK + MARKS.index(TEXTS[text]) for name, text in IDS.items()},
    )  # fmt: skip
    return halved(transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config).eval())


def inputs(model: Any, tokens: Any, items: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return what transformers takes for images ``[height, width, 3]`` and sounds ``[samples]``."""
    import torch
    import transformers
    from torch.nn.functional import pad

    extractor, found = transformers.WhisperFeatureExtractor(feature_size=N_MELS), {}
    options = {"sampling_rate": 16_000, "padding": True, "truncation": False, "return_attention_mask": True}
    if views := [view_of(item) for item in items if item.ndim == 3]:
        found["pixel_values"] = torch.from_numpy(np.concatenate([view.patches for view in views]))
        found["image_grid_thw"] = torch.tensor([[1, view.n_rows, view.n_cols] for view in views])
    if sounds := [extractor(item, return_tensors="pt", **options) for item in items if item.ndim == 1]:
        longest = max(each["attention_mask"].shape[1] for each in sounds)
        for ours, theirs in (("input_features",) * 2, ("attention_mask", "feature_attention_mask")):
            found[theirs] = torch.cat([pad(each[ours], (0, longest - each[ours].shape[-1])) for each in sounds])
    return found


def encoded(model: Any, item: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    import torch

    found = inputs(model, None, [item])
    if item.ndim == 1:
        return np.asarray(model.get_audio_features(**found).pooler_output)
    output = model.model.visual(found["pixel_values"], found["image_grid_thw"])
    return np.asarray(torch.cat([output.pooler_output, *output.deepstack_features], dim=1))


def template(text: str) -> str:
    for theirs, ours in TEXTS.items():
        text = text.replace(theirs, ours)
    return text


FAMILY = replace(
    QWEN25OMNI, make=make, marks=MARKS, pad="<|audio_pad|>", template=template(QWEN25OMNI.template),
    processor={**PROCESSOR, **IMAGES}, inputs=inputs, encoded=encoded,
)  # fmt: skip
