"""Gemma 4 with an encoder of sounds, whose rows attend causally; images are seen both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, gemma4

MARKS = (*gemma4.MARKS, "<|audio>", "<audio|>")
N_MELS = 40
PROCESSOR = {
    **gemma4.PROCESSOR,
    "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": N_MELS},
}
TEMPLATE = gemma4.TEMPLATE.replace(
    "{% else %}{{ part.text }}", "{% elif part.type == 'audio' %}<|audio|>{% else %}{{ part.text }}"
)


def make() -> Any:
    import torch

    model = gemma4.make(
        {"use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 12},
        {"standardize": False, "use_clipped_linears": True},
        {
            "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "output_proj_dims": 40,
            "subsampling_conv_channels": [N_MELS, 6],
        },
    )  # fmt: skip
    with torch.no_grad():
        for name, weight in model.model.audio_tower.named_parameters():
            if name.endswith("per_dim_scale"):
                weight.normal_(std=0.5)
    return model


def inputs(model: Any, tokens: Any, items: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return what transformers takes for images ``[height, width, 3]`` and sounds ``[samples]``."""
    import transformers

    images, sounds = ([item for item in items if item.ndim == n] for n in (3, 1))
    found = gemma4.pixels(images) if images else {}
    if tokens is not None:
        kinds = (("<|image|>", 1), ("<|audio|>", 3))
        found["mm_token_type_ids"] = sum((tokens == FIRST_MARK + MARKS.index(text)).int() * n for text, n in kinds)
    if sounds:
        extractor = transformers.Gemma4AudioFeatureExtractor(feature_size=N_MELS)
        made = extractor(list(sounds), return_tensors="pt")
        found |= {name: made[name] for name in ("input_features", "input_features_mask")}
    return found


def encoded(model: Any, item: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if item.ndim == 3:
        return gemma4.encoded(model, item)
    output = model.model.get_audio_features(**inputs(model, None, [item]))
    return np.asarray(output.pooler_output[output.attention_mask])


FAMILY = replace(
    gemma4.FAMILY, make=make, marks=MARKS, pad="<|audio|>", template=TEMPLATE, processor=PROCESSOR, inputs=inputs,
    encoded=encoded,
)  # fmt: skip
