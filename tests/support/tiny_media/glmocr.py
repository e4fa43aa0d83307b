"""GLM-OCR: norms of q and k, no learned positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import randomized
from .glm4v import FAMILY as GLM4V
from .glm4v import IDS, TEXT, VISION


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(11)
    config = transformers.GlmOcrConfig(text_config=TEXT, vision_config=VISION, **IDS)
    return randomized(transformers.GlmOcrForConditionalGeneration(config).eval())


FAMILY = replace(GLM4V, make=make)
