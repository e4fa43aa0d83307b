"""Feature extractors give the frames of transformers', in NumPy and in torch."""

from __future__ import annotations

import numpy as np
import pytest
from audio_cases import CASES, LENGTHS, ours, reference, sound

pytest.importorskip("transformers")
pytest.importorskip("torch")


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_frames_equal_transformers(name: str, length: int) -> None:
    samples = sound(length)
    found = ours(name).extract(samples, CASES[name][2])
    for in_torch in (False, True):
        frames, n_real = reference(name, samples, in_torch=in_torch)
        assert found.frames.shape == frames.shape
        assert found.n_real == n_real
        assert np.abs(found.frames - frames).max() <= (3e-5 if in_torch else 1e-5)
