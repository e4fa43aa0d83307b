"""Qwen3.5: recurrent layers, and attention in every third."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import qwen3vl, randomized
from .qwen3vl import mark_id, view_of


def make(name: str = "Qwen3_5", mlp: Mapping[str, int] | None = None) -> Any:
    """Return the model of a transformers class, with the sizes of its MLP."""
    import torch
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 2], "mrope_interleaved": True,
            },
            **(mlp or {"intermediate_size": 96}),
        },
        vision_config={
            "depth": 3, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
            "num_position_embeddings": 144,
        },
        image_token_id=mark_id("<|image_pad|>"), video_token_id=mark_id("<|video_pad|>"),
        vision_start_token_id=mark_id("<|vision_start|>"), vision_end_token_id=mark_id("<|vision_end|>"),
    )  # fmt: skip
    return randomized(getattr(transformers, f"{name}ForConditionalGeneration")(config).eval())


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    import torch

    view = view_of(image)
    output = model.model.visual(torch.from_numpy(view.patches), torch.tensor([[1, view.n_rows, view.n_cols]]))
    rows: npt.NDArray[np.float32] = output.pooler_output.numpy()
    return rows


FAMILY = replace(qwen3vl.FAMILY, make=make, encoded=encoded, has_state=True)
