"""The interface of feature extractors, which turn samples into the frames that an audio encoder reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .resample import Samples

__all__ = ["AudioFeatures", "FeatureExtractor"]


@dataclass(frozen=True)
class AudioFeatures:
    """Frames of a spectrogram.

    Attributes:
        frames: float32 [n_frames, n_mels].
        n_real: Leading frames that hold sound; the others are padding.
    """

    frames: Samples
    n_real: int


@dataclass(frozen=True)
class FeatureExtractor(ABC):
    """Turns samples at ``rate`` into frames of ``n_mels``, by the rules of a model family."""

    n_mels: int
    rate: int = 16_000

    @abstractmethod
    def n_frames(self, n_samples: int) -> int:
        """Return how many frames samples give."""

    @abstractmethod
    def extract(self, samples: Samples, length: int = 0) -> AudioFeatures:
        """Compute the frames of samples, padded with silence to ``length`` samples.

        Raises:
            RequestError: The audio is too short for a frame.
        """
