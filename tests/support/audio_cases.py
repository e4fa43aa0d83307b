"""transformers' feature extractors with settings of published checkpoints, and sounds of awkward lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from quire.media.audio import FeatureExtractor, Samples, open_extractor

SECOND = 16_000

# transformers' class, its settings, the samples to pad to.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "whisper-80": ("WhisperFeatureExtractor", {"feature_size": 80}, 30 * SECOND),
    "whisper-128": ("WhisperFeatureExtractor", {"feature_size": 128}, 30 * SECOND),
    "whisper-128-short": ("WhisperFeatureExtractor", {"feature_size": 128}, 0),
    "gemma4": ("Gemma4AudioFeatureExtractor", {}, 0),
}
LENGTHS = (201, 641, 4_001, 12_345, 3 * SECOND, 30 * SECOND)


def sound(n_samples: int, seed: int = 0) -> Samples:
    """Return triangle waves with noise, of integers, so that they are the same everywhere; the middle is silent."""
    rng = np.random.default_rng(n_samples + seed)
    at = np.arange(n_samples)
    waves = sum(abs((at * step) % 20_000 - 10_000) - 5_000 for step in (137, 1_009, 4_321))
    samples = np.asarray(waves + rng.integers(-2_000, 2_000, n_samples))
    samples[n_samples // 3 : n_samples // 2] = 0
    return (samples / 32_768).astype(np.float32)


def ours(name: str) -> FeatureExtractor:
    cls, settings, _ = CASES[name]
    return open_extractor({"feature_extractor_type": cls, **settings})


def reference(name: str, samples: Samples, *, in_torch: bool = False) -> tuple[np.ndarray, int]:
    """Return transformers' frames ``[n_frames, n_mels]`` and the number that its mask keeps."""
    import transformers

    cls, settings, length = CASES[name]
    extractor = getattr(transformers, cls)(**settings)
    if name == "gemma4":
        found = extractor([samples], sampling_rate=SECOND, return_tensors="np")
        return found["input_features"][0], int(found["input_features_mask"][0].sum())
    if not in_torch:
        extractor._torch_extract_fbank_features = extractor._np_extract_fbank_features
    padding = {"padding": "max_length"} if length else {"padding": "longest"}
    found = extractor(samples, sampling_rate=SECOND, return_attention_mask=True, return_tensors="np", **padding)
    return found["input_features"][0].T, int(found["attention_mask"][0].sum())
