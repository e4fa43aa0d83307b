"""Change the sample rate of audio."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Samples", "resample"]

# float32 of shape [n_samples].
Samples: TypeAlias = npt.NDArray[np.float32]

# A windowed sinc (Smith, "Digital Audio Resampling"): 100 dB of attenuation above the lower Nyquist frequency, flat
# below 0.913 of it.  soxr's HQ, which transformers uses, has the same band.
CUTOFF = 0.9565
ZEROS = 72
BETA = 10.0

# The longest period that is kept exactly, and it holds every usual rate; others are off by 72 ms in 10 minutes at most.
MAX_PERIOD = 4096

# Outputs that share one matrix of coefficients, and rows of one product.
_GROUP = 192
_ROWS = 256


def resample(samples: Samples, source: int, target: int) -> Samples:
    """Resample to ``ceil(n * target / source)`` samples.

    The coefficients repeat: from 44.1 kHz to 16 kHz, after 160 outputs.  So the outputs at the same places of all
    periods are one matrix product.
    """
    if source == target:
        return samples
    n_out = -(-len(samples) * target // source)
    period = Fraction(source, target).limit_denominator(MAX_PERIOD)
    up, down = period.denominator, period.numerator
    cutoff = CUTOFF * min(1.0, up / down)
    half = math.ceil(ZEROS / cutoff)
    # Short periods are joined, long ones are cut.
    repeats = max(1, _GROUP // up)
    up, down = up * repeats, down * repeats
    n_periods = -(-n_out // up)
    out = np.empty((n_periods, up), np.float32)
    padded = np.zeros(half + n_periods * down + half + 1, np.float32)
    kept = samples[: len(padded) - half]
    padded[half : half + len(kept)] = kept
    for begin in range(0, min(up, n_out), _GROUP):
        places = np.arange(begin, min(begin + _GROUP, up)) * (down / up)
        first = math.floor(places[0])
        width = math.floor(places[-1]) - first + 2 * half + 1
        offsets = np.arange(first - half, first - half + width)[:, None] - places[None, :]
        matrix = _kernel(offsets, cutoff, half).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(padded, width)[first::down][:n_periods]
        for row in range(0, n_periods, _ROWS):
            # BLAS needs rows that do not overlap.
            rows = np.ascontiguousarray(windows[row : row + _ROWS])
            out[row : row + _ROWS, begin : begin + len(places)] = rows @ matrix
    return out.reshape(-1)[:n_out]


def _kernel(offsets: npt.NDArray[np.float64], cutoff: float, half: int) -> npt.NDArray[np.float64]:
    """Return the filter at distances from its middle, in input samples; zero from ``half`` on."""
    inside = np.abs(offsets) < half
    x = offsets[inside]
    found = np.zeros(offsets.shape)
    found[inside] = cutoff * np.sinc(cutoff * x) * np.i0(BETA * np.sqrt(1 - (x / half) ** 2)) / np.i0(BETA)
    return found
