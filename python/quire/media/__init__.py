"""Prepare images for vision encoders: decode, resize, normalize, cut into patches.

Needs Pillow: ``pip install "quire-llm[media]"``.
"""

from .decode import MAX_PIXELS, decode_data_url, decode_image, to_rgb
from .image_processor import ImageProcessor, Layout, ProcessedImage, View
from .processors import open_processor

__all__ = [
    "MAX_PIXELS",
    "ImageProcessor",
    "Layout",
    "ProcessedImage",
    "View",
    "decode_data_url",
    "decode_image",
    "open_processor",
    "to_rgb",
]
