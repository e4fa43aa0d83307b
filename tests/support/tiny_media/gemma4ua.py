"""Gemma 4 as in its 12B size, hearing: samples are projected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, gemma4omni, gemma4uv

SAMPLES = 160  # for each token


def make() -> Any:
    return gemma4uv.make({"audio_embed_dim": SAMPLES})


def waves(sounds: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import transformers

    extractor = transformers.Gemma4UnifiedAudioFeatureExtractor(feature_size=SAMPLES, audio_samples_per_token=SAMPLES)
    return dict(extractor(list(sounds), return_tensors="pt"))


def inputs(model: Any, tokens: Any, items: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return what transformers takes for images ``[height, width, 3]`` and sounds ``[samples]``."""
    images, sounds = ([item for item in items if item.ndim == n] for n in (3, 1))
    found = gemma4uv.inputs(model, tokens, images)
    found["mm_token_type_ids"] += (tokens == FIRST_MARK + gemma4omni.MARKS.index("<|audio|>")).int() * 3
    return {**found, **(waves(sounds) if sounds else {})}


def encoded(model: Any, item: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if item.ndim == 3:
        return gemma4uv.encoded(model, item)
    return np.asarray(model.model.get_audio_features(**waves([item])).pooler_output[0])


FAMILY = replace(gemma4omni.FAMILY, make=make, inputs=inputs, encoded=encoded)
