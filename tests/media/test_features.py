"""Feature extractors give the frames that transformers' gave when features.json was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audio_cases import CASES, ours, sound
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.media.audio import open_extractor

RECORDS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("features.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "length"), [(name, length) for name, kept in RECORDS.items() for length in kept])
def test_frames_equal_the_recorded_ones(name: str, length: str) -> None:
    wanted = RECORDS[name][length]
    found = ours(name).extract(sound(int(length)), CASES[name][2])
    assert list(found.frames.shape) == wanted["shape"]
    assert found.n_real == wanted["n_real"]
    assert found.frames.dtype == np.float32
    places = np.linspace(0, found.frames.size - 1, len(wanted["numbers"])).astype(int)
    assert np.abs(found.frames.reshape(-1)[places] - wanted["numbers"]).max() <= 1e-5
    assert abs(found.frames[: found.n_real].mean(dtype=np.float64) - wanted["mean"]) <= 1e-5


def test_frames_are_known_without_samples() -> None:
    for name in CASES:
        for length in (201, 640, 1_000, 16_000, 16_001):
            assert ours(name).n_frames(length) == len(ours(name).extract(sound(length)).frames)


def test_frames_of_long_audio_equal_those_of_its_parts() -> None:
    # 1024 frames are computed at a time; Gemma's frames are independent of each other.
    extractor, samples = ours("gemma4"), sound(40 * 16_000)
    whole, part = extractor.extract(samples).frames, extractor.extract(samples[16_000 * 10 :]).frames
    assert np.array_equal(whole[1_001:4_000], part[1:3_000])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [0, 1, 160])
def test_audio_shorter_than_a_frame_is_refused(name: str, length: int) -> None:
    with pytest.raises(RequestError, match=f"{length} samples"):
        ours(name).extract(np.zeros(length, np.float32))


def test_settings() -> None:
    nested = {"feature_extractor": {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128}}
    assert open_extractor(nested).n_mels == 128
    for cls, settings in (
        ("WhisperFeatureExtractor", {"n_fft": 512}),
        ("WhisperFeatureExtractor", {"sampling_rate": 8_000}),
        ("WhisperFeatureExtractor", {"dither": 0.1}),
        ("Gemma4AudioFeatureExtractor", {"preemphasis": 0.97}),
        ("Gemma4AudioFeatureExtractor", {"per_bin_mean": [0.0] * 128}),
        ("FooFeatureExtractor", {}),
    ):
        with pytest.raises(UnsupportedError, match=next(iter(settings), "Foo")):
            open_extractor({"feature_extractor_type": cls, **settings})
    for size in (0, 257, "80", 1.5):
        with pytest.raises(LoadError, match="feature_size"):
            open_extractor({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": size})
    with pytest.raises(LoadError, match="feature_extractor_type"):
        open_extractor({})
