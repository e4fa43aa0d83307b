"""GLM-4.5V: experts in the language model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import randomized
from .glm4v import FAMILY as GLM4V
from .glm4v import IDS, TEXT, VISION


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(12)
    experts = {
        "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    config = transformers.Glm4vMoeConfig(text_config={**TEXT, **experts}, vision_config=VISION, **IDS)
    return randomized(transformers.Glm4vMoeForConditionalGeneration(config).eval())


FAMILY = replace(GLM4V, make=make)
