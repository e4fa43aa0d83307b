"""The interface of image processors, which turn an image into views, and each view into patches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .decode import Rgb
from .pixels import Floats, Normalization

__all__ = ["MAX_PATCHES", "ImageProcessor", "Layout", "ProcessedImage", "View"]


@dataclass(frozen=True)
class View:
    """One picture for the encoder: the whole image or a tile of it.

    Attributes:
        patches: float32 [n_rows * n_cols, patch_dim].
        n_rows, n_cols: The grid of patches.
    """

    patches: Floats
    n_rows: int
    n_cols: int


@dataclass(frozen=True)
class Layout:
    """The grid of an image, known from its size alone.

    Attributes:
        views: Rows and columns of patches of each view, in the order of the prompt.
        tile_rows, tile_cols: The grid of tiles among the views; 0 for an image that is not cut.
        n_tokens: Tokens that each view takes in the prompt.
        kept: Rows and columns of patches of all tiles together that the image fills; the rest is padding, on two sides.
    """

    views: tuple[tuple[int, int], ...]
    tile_rows: int
    tile_cols: int
    n_tokens: tuple[int, ...]
    kept: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class ProcessedImage:
    """An image ready for the encoder."""

    views: tuple[View, ...]
    layout: Layout


MAX_PATCHES = 16384  # the largest view that encoders make room for


class ImageProcessor(ABC):
    """Turns pixels into patches, by the rules of a model family and the settings of a checkpoint."""

    normalization: Normalization

    @abstractmethod
    def layout(self, height: int, width: int) -> Layout:
        """Return the grid of an image of this size, in pixels.

        Raises:
            RequestError: The model does not accept images of this shape.
        """

    def limited(self, n_patches: int) -> ImageProcessor:
        """Return a processor that shrinks larger images to ``n_patches`` at most, if the family shrinks images so."""
        return self

    @abstractmethod
    def process(self, image: Rgb) -> ProcessedImage:
        """Resize, cut and normalize an image: uint8 [height, width, 3]."""
