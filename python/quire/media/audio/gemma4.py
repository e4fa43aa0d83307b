"""Gemma 4: logarithms of mel magnitudes, 100 frames a second; a frame is real if all of its samples are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import RequestError
from ..settings import Settings
from .features import AudioFeatures, FeatureExtractor
from .resample import Samples
from .spectrogram import hann_window, htk_filters, magnitudes

__all__ = ["Gemma4Features", "open_gemma4_audio"]

WINDOW = 320
HOP = 160
N_FFT = 512
FLOOR = 1e-3
# The reference pads samples to a multiple of this, and reads one sample more than a window.
MULTIPLE = 128


@dataclass(frozen=True)
class Gemma4Features(FeatureExtractor):
    """transformers' Gemma4AudioFeatureExtractor; frames that are not real are zero."""

    def n_frames(self, n_samples: int) -> int:
        return max(0, (-(-n_samples // MULTIPLE) * MULTIPLE - WINDOW // 2 - 1) // HOP + 1)

    def n_real(self, n_samples: int) -> int:
        """Return how many frames of samples hold sound only."""
        return max(0, -(-(n_samples - WINDOW // 2) // HOP))

    def extract(self, samples: Samples, length: int = 0) -> AudioFeatures:
        n_samples = max(len(samples), length)
        n_real = self.n_real(len(samples))
        if not n_real:
            least = WINDOW // 2 + 1
            raise RequestError(f"the audio has {len(samples)} samples at {self.rate} Hz: at least {least} are needed")
        n_frames = self.n_frames(n_samples)
        padded = np.pad(samples, (WINDOW // 2, n_frames * HOP + WINDOW - len(samples)))
        filters, window = htk_filters(self.n_mels, N_FFT // 2 + 1, self.rate), hann_window(WINDOW)
        mels = [block @ filters for block in magnitudes(padded, window, HOP, N_FFT, n_frames)]
        frames = np.log(np.concatenate(mels) + FLOOR).astype(np.float32)
        frames[n_real:] = 0
        return AudioFeatures(frames, n_real)


def open_gemma4_audio(settings: Settings) -> Gemma4Features:
    for name, value in _FIXED.items():
        settings.only(name, value)
    return Gemma4Features(settings.integer("feature_size", 128, most=256))


_FIXED: dict[str, object] = {
    "sampling_rate": 16_000, "frame_length_ms": 20, "hop_length_ms": 10, "min_frequency": 0, "max_frequency": 8000,
    "preemphasis": 0, "fft_overdrive": False, "dither": 0, "input_scale_factor": 1, "mel_floor": FLOOR,
    "per_bin_mean": None, "per_bin_stddev": None,
}  # fmt: skip
