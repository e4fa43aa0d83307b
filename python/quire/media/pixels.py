"""Arithmetic on pixels, equal to transformers' Pillow image processors bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .decode import Rgb
from .pillow import pillow

__all__ = ["CLIP_MEAN", "CLIP_STD", "Floats", "Normalization", "crop_center", "patches_of", "resize", "tiles_of"]

Floats = npt.NDArray[np.float32]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Normalization:
    """The map from a uint8 pixel to the model's input: ``(pixel * scale - mean) / std``, by channel.

    ``is_bf16``: computed in BF16, as Llama 4 does.
    """

    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    is_bf16: bool = False

    def __call__(self, image: Rgb) -> Floats:
        """Return float32 of shape [3, height, width] for uint8 [height, width, 3]."""
        # A table of all 256 pixel values.  transformers scales in double precision and normalizes in single precision.
        scaled = (np.arange(256, dtype=np.float64) * self.scale).astype(np.float32)
        if self.is_bf16:  # every step is rounded
            scaled = _bf16(np.arange(256, dtype=np.float32) * np.float32(self.scale))
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        table = (scaled[None, :] - mean[:, None]) / std[:, None]
        if self.is_bf16:
            table = _bf16(_bf16(scaled[None, :] - _bf16(mean)[:, None]) / _bf16(std)[:, None])
        return np.stack([table[channel][image[:, :, channel]] for channel in range(3)])


def _bf16(numbers: Floats) -> Floats:
    """Round to the nearest numbers of BF16, to even ones if two are equally near."""
    bits = numbers.astype(np.float32).view(np.uint32)
    rounded: Floats = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


def resize(image: Rgb, height: int, width: int, resample: int) -> Rgb:
    """Resample with Pillow's antialiased filters; ``resample`` is Pillow's number of the filter."""
    return np.asarray(pillow().fromarray(image).resize((width, height), resample=resample))


def crop_center(image: Rgb, height: int, width: int) -> Rgb:
    """Cut the middle out of an image, which is first padded with black where it is smaller."""
    missing_rows, missing_cols = max(height - image.shape[0], 0), max(width - image.shape[1], 0)
    top, left = -(-missing_rows // 2), -(-missing_cols // 2)
    image = np.pad(image, ((top, missing_rows - top), (left, missing_cols - left), (0, 0)))
    # Cropping takes the larger half of an odd remainder off the bottom and right; padding adds it at the top and left.
    row, col = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[row : row + height, col : col + width]


def tiles_of(image: Rgb, height: int, width: int) -> list[Rgb]:
    """Cut an image into tiles, row by row; its sides are multiples of a tile's."""
    return [
        image[row : row + height, col : col + width]
        for row in range(0, image.shape[0], height)
        for col in range(0, image.shape[1], width)
    ]


def patches_of(pixels: Floats, patch: int, *, order: str = "chw", merge: int = 1, repeat: int = 1) -> Floats:
    """Cut pixels into the rows that a patch embedding multiplies.

    Args:
        pixels: float32 [3, height, width].  Pixels after the last whole patch are dropped, as in a convolution.
        patch: A patch's side, in pixels.
        order: The order within a patch: "chw" as a convolution's weights, "hwc" as a linear layer's.
        merge: Patches follow each other in squares of ``merge`` x ``merge``, then row by row.
        repeat: Times that each channel is repeated, for models that take several frames.

    Returns:
        float32 [n_patches, patch_dim].
    """
    channels, height, width = pixels.shape
    rows, cols = height // patch // merge, width // patch // merge
    pixels = pixels[:, : rows * merge * patch, : cols * merge * patch]
    split = pixels.reshape(channels, rows, merge, patch, cols, merge, patch)
    # To [rows, cols, merge, merge, channels, patch, patch].
    split = split.transpose(1, 4, 2, 5, 0, 3, 6)
    if order == "hwc":
        split = split.transpose(0, 1, 2, 3, 5, 6, 4)
    elif repeat > 1:
        split = np.repeat(split[:, :, :, :, :, None], repeat, axis=5)
    return np.ascontiguousarray(split.reshape(rows * cols * merge * merge, -1))


def triple(value: float | Sequence[float]) -> tuple[float, float, float]:
    """Return one number per channel."""
    if isinstance(value, (int, float)):
        return float(value), float(value), float(value)
    red, green, blue = value
    return float(red), float(green), float(blue)
