"""Images that stay whole: one view, of a size that the family computes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ..decode import Rgb
from ..image_processor import ImageProcessor, Layout, ProcessedImage, View
from ..pixels import Floats, Normalization, patches_of, resize

__all__ = ["OneView", "Square"]


@dataclass(frozen=True, kw_only=True)
class OneView(ImageProcessor):
    """Resize every image to ``size``; a token takes ``merge`` x ``merge`` patches."""

    normalization: Normalization
    patch_size: int
    merge: int
    resample: int

    @abstractmethod
    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width, in pixels, that an image is resized to.

        Raises:
            RequestError: The model does not accept images of this shape.
        """

    def patches(self, pixels: Floats) -> Floats:
        """Cut normalized pixels into patches, in the order of the family's encoder."""
        return patches_of(pixels, self.patch_size)

    def layout(self, height: int, width: int) -> Layout:
        return self._grid(*self.size(height, width))

    def process(self, image: Rgb) -> ProcessedImage:
        return self.view(resize(image, *self.size(*image.shape[:2]), self.resample))

    def view(self, image: Rgb) -> ProcessedImage:
        """Return an image of the final size as patches."""
        layout = self._grid(*image.shape[:2])
        return ProcessedImage((View(self.patches(self.normalization(image)), *layout.views[0]),), layout)

    def _grid(self, height: int, width: int) -> Layout:
        rows, cols = height // self.patch_size, width // self.patch_size
        return Layout(((rows, cols),), 0, 0, ((rows // self.merge) * (cols // self.merge),))


@dataclass(frozen=True, kw_only=True)
class Square(OneView):
    """Resize every image to ``height`` x ``width`` pixels, without regard to its shape."""

    height: int
    width: int

    def size(self, height: int, width: int) -> tuple[int, int]:
        return self.height, self.width
