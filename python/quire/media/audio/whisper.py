"""Whisper (Radford et al. 2022): logarithms of mel powers, 100 frames a second, within 8 decades of the loudest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import RequestError
from ..settings import Settings
from .features import AudioFeatures, FeatureExtractor
from .resample import Samples
from .spectrogram import hann_window, magnitudes, slaney_filters

__all__ = ["WhisperFeatures", "open_whisper"]

N_FFT = 400
HOP = 160
FLOOR = 1e-10


@dataclass(frozen=True)
class WhisperFeatures(FeatureExtractor):
    """transformers' WhisperFeatureExtractor."""

    def n_frames(self, n_samples: int) -> int:
        return n_samples // HOP

    def extract(self, samples: Samples, length: int = 0) -> AudioFeatures:
        n_real, edge = len(samples), N_FFT // 2
        n_samples = max(n_real, length)
        if n_samples <= edge:
            raise RequestError(f"the audio has {n_real} samples at {self.rate} Hz: at least {edge + 1} are needed")
        padded = np.pad(np.pad(samples, (0, n_samples - n_real)), edge, mode="reflect")
        # Windows are centred on their frames; the last one is dropped.
        n_frames = self.n_frames(n_samples)
        filters = slaney_filters(self.n_mels, edge + 1, self.rate)
        powers = [block**2 @ filters for block in magnitudes(padded, hann_window(N_FFT), HOP, N_FFT, n_frames)]
        logs = np.log10(np.maximum(np.concatenate(powers), FLOOR)).astype(np.float32)
        frames = (np.maximum(logs, logs.max() - 8) + 4) / 4
        return AudioFeatures(frames, min(-(-n_real // HOP), n_frames))


def open_whisper(settings: Settings) -> WhisperFeatures:
    settings.only("n_fft", N_FFT)
    settings.only("hop_length", HOP)
    settings.only("dither", 0)
    settings.only("sampling_rate", 16_000)
    return WhisperFeatures(settings.integer("feature_size", 80, most=256))
