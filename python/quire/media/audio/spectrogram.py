"""Spectrograms and mel filters, as transformers' audio utilities compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from .resample import Samples

__all__ = ["Doubles", "hann_window", "htk_filters", "magnitudes", "slaney_filters"]

Doubles = npt.NDArray[np.float64]

# Frames of one transform: two megabytes of samples.
_BLOCK = 1024


def hann_window(size: int) -> Doubles:
    """Return a periodic Hann window."""
    return np.hanning(size + 1)[:-1]


def magnitudes(samples: Samples, window: Doubles, hop: int, n_fft: int, n_frames: int) -> Iterator[Doubles]:
    """Yield the magnitudes of ``n_frames`` windows, ``[frames, n_fft // 2 + 1]`` for some frames at a time."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, len(window))[::hop][:n_frames]
    for begin in range(0, n_frames, _BLOCK):
        yield np.abs(np.fft.rfft(frames[begin : begin + _BLOCK] * window, n_fft, axis=-1))


def slaney_filters(n_mels: int, n_bins: int, rate: int) -> Doubles:
    """Return filters ``[n_bins, n_mels]`` of equal area (Slaney's Auditory Toolbox, 1998), up to half the rate."""
    # Linear up to 1000 Hz, then logarithmic.
    linear, step = 3 / 200, 27 / np.log(6.4)

    def to_mel(hertz: float) -> float:
        return hertz * linear if hertz < 1000 else 15 + float(np.log(hertz / 1000)) * step

    def to_hertz(mel: Doubles) -> Doubles:
        return np.where(mel < 15, mel / linear, 1000 * np.exp((mel - 15) / step))

    filters, edges = _triangles(n_mels, n_bins, rate, to_mel, to_hertz)
    return filters * (2 / (edges[2:] - edges[:-2]))


def htk_filters(n_mels: int, n_bins: int, rate: int) -> Doubles:
    """Return filters ``[n_bins, n_mels]`` of equal height (HTK book, 2006), up to half the rate."""

    def to_mel(hertz: float) -> float:
        return 2595 * float(np.log10(1 + hertz / 700))

    return _triangles(n_mels, n_bins, rate, to_mel, lambda mel: 700 * (10 ** (mel / 2595) - 1))[0]


def _triangles(
    n_mels: int, n_bins: int, rate: int, to_mel: Callable[[float], float], to_hertz: Callable[[Doubles], Doubles]
) -> tuple[Doubles, Doubles]:
    """Return triangular filters, and the ``n_mels + 2`` frequencies at their edges and middles."""
    edges = to_hertz(np.linspace(to_mel(0.0), to_mel(rate / 2), n_mels + 2))
    bins = np.linspace(0, rate // 2, n_bins)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling)), edges
