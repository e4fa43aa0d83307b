"""Qwen2.5-VL, with windows of 2 x 2 tokens in all but every second layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import randomized
from .qwen2vl import FAMILY as QWEN2VL
from .qwen2vl import IDS, TEXT, VISION


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(6)
    config = transformers.Qwen2_5_VLConfig(
        text_config=TEXT,
        vision_config={
            **VISION, "hidden_size": 64, "intermediate_size": 100, "out_hidden_size": 64, "window_size": 32,
            "fullatt_block_indexes": [1, 3],
        },
        **IDS,
    )  # fmt: skip
    return randomized(transformers.Qwen2_5_VLForConditionalGeneration(config).eval())


FAMILY = replace(QWEN2VL, make=make)
