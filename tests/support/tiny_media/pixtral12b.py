"""Pixtral 12B: no merged patches, in transformers' class of LLaVA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import FIRST_MARK, randomized
from .pixtral import FAMILY as PIXTRAL
from .pixtral import TEXT, VISION

FEATURES = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(8)
    config = transformers.LlavaConfig(
        text_config=TEXT, vision_config={**VISION, "hidden_act": "gelu"}, image_token_index=FIRST_MARK,
        tie_word_embeddings=False, **FEATURES,
    )  # fmt: skip
    return randomized(transformers.LlavaForConditionalGeneration(config).eval())


FAMILY = replace(PIXTRAL, make=make)
