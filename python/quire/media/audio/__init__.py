"""Prepare audio for encoders: decode, mix to one channel, resample, compute a spectrogram.

Needs soundfile: ``pip install "quire-llm[media]"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import LoadError, UnsupportedError
from ..settings import Settings
from .decode import MAX_BYTES, MAX_SECONDS, RATE, decode_audio, to_samples
from .features import AudioFeatures, FeatureExtractor
from .gemma4 import open_gemma4_audio
from .resample import Samples, resample
from .whisper import open_whisper

__all__ = [
    "FAMILIES",
    "MAX_BYTES",
    "MAX_SECONDS",
    "RATE",
    "AudioFeatures",
    "FeatureExtractor",
    "Samples",
    "decode_audio",
    "open_extractor",
    "resample",
    "to_samples",
]

FAMILIES: Mapping[str, Callable[[Settings], FeatureExtractor]] = {
    "Gemma4AudioFeatureExtractor": open_gemma4_audio,
    "WhisperFeatureExtractor": open_whisper,
}


def open_extractor(config: Mapping[str, Any]) -> FeatureExtractor:
    """Return the feature extractor that a checkpoint's configuration describes.

    Args:
        config: The contents of preprocessor_config.json, or of processor_config.json.

    Raises:
        LoadError: A field is out of range.
        UnsupportedError: The extractor's class, or one of its settings, is unsupported.
    """
    nested = config.get("feature_extractor")
    if isinstance(nested, Mapping):
        config = nested
    name = config.get("feature_extractor_type")
    if not isinstance(name, str):
        raise LoadError("feature extractor: feature_extractor_type is missing")
    if name not in FAMILIES:
        raise UnsupportedError(f"feature extractor {name!r:.60} is unsupported")
    return FAMILIES[name](Settings(config, "feature extractor"))
