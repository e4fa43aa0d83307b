"""One size for every image: the view that several families share."""

from __future__ import annotations

from dataclasses import dataclass

from ..decode import Rgb
from ..image_processor import ImageProcessor, Layout, ProcessedImage, View
from ..pixels import Normalization, patches_of, resize

__all__ = ["Square"]


@dataclass(frozen=True, kw_only=True)
class Square(ImageProcessor):
    """Resize every image to ``height`` x ``width`` pixels, without regard to its shape."""

    normalization: Normalization
    patch_size: int
    merge: int
    height: int
    width: int
    resample: int

    def layout(self, height: int, width: int) -> Layout:
        rows, cols = self.height // self.patch_size, self.width // self.patch_size
        return Layout(((rows, cols),), 0, 0, ((rows // self.merge) * (cols // self.merge),))

    def process(self, image: Rgb) -> ProcessedImage:
        return self.view(resize(image, self.height, self.width, self.resample))

    def view(self, image: Rgb) -> ProcessedImage:
        """Return an image of the final size as patches."""
        layout = self.layout(*image.shape[:2])
        patches = patches_of(self.normalization(image), self.patch_size)
        return ProcessedImage((View(patches, *layout.views[0]),), layout)
