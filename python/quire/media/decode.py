"""Decode images that a client sent.

The bytes are hostile until proven otherwise:

- the size is read from the header and checked before a raster is allocated,
- only the formats below are opened, each by its own decoder,
- only the first frame of an animation is decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import struct
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import RequestError, ShapeError
from .pillow import Bitmap, pillow

__all__ = ["MAX_BYTES", "MAX_PIXELS", "Rgb", "decode_base64", "decode_data_url", "decode_image", "to_rgb"]

# uint8 of shape [height, width, 3].
Rgb: TypeAlias = npt.NDArray[np.uint8]

MAX_BYTES = 32 << 20
# An image of this size takes 150 MB as RGB.
MAX_PIXELS = 50_000_000
# A progressive JPEG repeats the whole raster in each scan; encoders write about ten.
MAX_JPEG_SCANS = 100

_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[\w.+-]+)*;base64,", re.IGNORECASE)
_ORIENTATION = 0x0112


def decode_data_url(url: str, *, max_bytes: int = MAX_BYTES, what: str = "image") -> bytes:
    """Return the bytes of a ``data:`` URL in base64; ``what`` names them in errors.

    Raises:
        RequestError: The URL has another scheme, is not base64, or holds more than ``max_bytes``.
    """
    head = _DATA_URL.match(url, 0, 200)
    if head is None:
        raise RequestError(f"unsupported {what} URL {url[:40]!r}: expected data:{what}/...;base64,...")
    return decode_base64(url[head.end() :], max_bytes=max_bytes, what=what)


def decode_base64(text: str, *, max_bytes: int, what: str) -> bytes:
    """Return the bytes of base64 text.

    Raises:
        RequestError: The text is not base64, or holds more than ``max_bytes``.
    """
    # The length is known without decoding: four characters hold three bytes.
    if len(text) // 4 * 3 > max_bytes + 2:
        raise RequestError(f"the {what} takes more than {max_bytes} bytes")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"the {what} is not valid base64") from None


def decode_image(data: bytes, *, max_pixels: int = MAX_PIXELS, max_bytes: int = MAX_BYTES) -> Rgb:
    """Decode a PNG, JPEG, WebP, GIF or BMP file.

    The orientation in EXIF is applied and transparency is dropped, as transformers' ``load_image`` does.

    Returns:
        uint8 array of shape [height, width, 3].

    Raises:
        RequestError: The format is unsupported, the file is damaged, or the image is too large.
        UnsupportedError: Pillow is not installed.
    """
    if len(data) > max_bytes:
        raise RequestError(f"the image takes {len(data)} bytes: at most {max_bytes} are accepted")
    pillow()
    name, opener = _opener_of(data)
    try:
        image = opener(data, max_pixels)
        _check_size(image.size, max_pixels)
        image.load()
        upright = _apply_orientation(image)
        return np.asarray(upright.convert("RGB"))
    except RequestError:
        raise
    except Exception as error:  # decoders raise whatever a damaged file provokes
        # Texts of Pillow's errors may show addresses and file objects; their type is enough.
        raise RequestError(f"damaged {name} image ({type(error).__name__})") from None


def to_rgb(image: Bitmap | npt.NDArray[np.uint8]) -> Rgb:
    """Convert the caller's image: a PIL image, or a uint8 array [height, width] or [height, width, 1, 3 or 4].

    Transparent pixels are composited on white, as transformers' image processors do.
    """
    images = pillow()
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
            raise ShapeError(f"image of dtype {image.dtype} and shape {image.shape}: expected uint8 [height, width, 3]")
        if 0 in image.shape:
            raise ShapeError(f"empty image of shape {image.shape}")
        image = images.fromarray(image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image)
    if not isinstance(image, images.Image):
        raise ShapeError(f"unsupported image of type {type(image).__name__}: expected a PIL image or an array")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        image = images.alpha_composite(images.new("RGBA", image.size, (255, 255, 255, 255)), image)
    return np.asarray(image.convert("RGB"))


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise RequestError(f"empty image of {width}x{height} pixels")
    if width * height > max_pixels:
        raise RequestError(f"the image has {width}x{height} pixels: at most {max_pixels} are accepted")


def _apply_orientation(image: Bitmap) -> Bitmap:
    transpose = pillow().Transpose
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # EXIF is a file format of its own, and often damaged
        return image
    turns = {
        2: transpose.FLIP_LEFT_RIGHT, 3: transpose.ROTATE_180, 4: transpose.FLIP_TOP_BOTTOM, 5: transpose.TRANSPOSE,
        6: transpose.ROTATE_270, 7: transpose.TRANSVERSE, 8: transpose.ROTATE_90,
    }  # fmt: skip
    return image.transpose(turns[orientation]) if orientation in turns else image


# Pillow's plugins are called directly.  PIL.Image.open would also warn about large sizes, which are checked here, by
# process-wide settings.


def _open_png(data: bytes, _: int) -> Bitmap:
    from PIL.PngImagePlugin import PngImageFile

    return PngImageFile(io.BytesIO(data))


def _open_jpeg(data: bytes, _: int) -> Bitmap:
    from PIL.JpegImagePlugin import JpegImageFile

    # Entropy-coded data never holds this pair of bytes, so every scan is counted.
    if data.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise RequestError(f"the JPEG image has more than {MAX_JPEG_SCANS} scans")
    return JpegImageFile(io.BytesIO(data))


def _open_gif(data: bytes, _: int) -> Bitmap:
    from PIL.GifImagePlugin import GifImageFile

    return GifImageFile(io.BytesIO(data))


def _open_bmp(data: bytes, _: int) -> Bitmap:
    from PIL.BmpImagePlugin import BmpImageFile

    return BmpImageFile(io.BytesIO(data))


def _open_webp(data: bytes, max_pixels: int) -> Bitmap:
    from PIL.WebPImagePlugin import WebPImageFile

    # The decoder allocates the canvas when it is opened, so the header is read here.
    _check_size(_webp_size(data), max_pixels)
    return WebPImageFile(io.BytesIO(data))


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise RequestError("damaged WebP image (unknown chunk)")


Opener: TypeAlias = Callable[[bytes, int], Bitmap]


def _opener_of(data: bytes) -> tuple[str, Opener]:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG", _open_png
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG", _open_jpeg
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP", _open_webp
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF", _open_gif
    if data.startswith(b"BM"):
        return "BMP", _open_bmp
    raise RequestError("unsupported image format: expected PNG, JPEG, WebP, GIF or BMP")
