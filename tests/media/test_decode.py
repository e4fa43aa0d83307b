"""Images of clients: what is decoded, and what is refused before memory is spent on it."""

from __future__ import annotations

import base64
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from quire.errors import RequestError, ShapeError
from quire.media import decode_data_url, decode_image, to_rgb

images = pytest.importorskip("PIL.Image")


def gradient(height: int = 5, width: int = 7) -> np.ndarray:
    rows, cols = np.mgrid[0:height, 0:width]
    return np.stack([rows * 30, cols * 30, 200 - rows * cols], axis=-1).astype(np.uint8)


def encoded(image: object, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, *chunks: bytes) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})])
def test_lossless_formats_return_their_pixels(kind: str, options: dict[str, object]) -> None:
    data = encoded(images.fromarray(gradient()), kind, **options)
    assert np.array_equal(decode_image(data), gradient())


def test_jpeg_equals_pillow() -> None:
    data = encoded(images.fromarray(gradient(40, 60)), "JPEG", quality=80, progressive=True)
    assert np.array_equal(decode_image(data), np.asarray(images.open(io.BytesIO(data))))


def test_first_frame_of_an_animation() -> None:
    frames = [images.fromarray(np.full((4, 4, 3), value, np.uint8)) for value in (10, 200)]
    for kind in ("GIF", "WEBP", "PNG"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert np.unique(decode_image(data)).tolist() == [10]


@pytest.mark.parametrize("orientation", range(1, 10))
def test_exif_orientation_is_applied_as_pillow_does(orientation: int) -> None:
    from PIL import ImageOps

    image = images.fromarray(gradient())
    exif = image.getexif()
    exif[0x0112] = orientation
    data = encoded(image, "PNG", exif=exif)
    expected = ImageOps.exif_transpose(images.open(io.BytesIO(data)))
    assert np.array_equal(decode_image(data), np.asarray(expected))


def test_transparency_is_dropped_from_files_and_composited_for_programs() -> None:
    pixels = np.dstack([gradient(), np.full((5, 7), 0, np.uint8)])
    image = images.fromarray(pixels, "RGBA")
    assert np.array_equal(decode_image(encoded(image, "PNG")), gradient())
    assert np.unique(to_rgb(image)).tolist() == [255]


def test_arrays_of_programs() -> None:
    gray = gradient()[:, :, 0]
    for image in (gray, gray[:, :, None]):
        assert np.array_equal(to_rgb(image), np.stack([gray] * 3, axis=-1))
    assert np.array_equal(to_rgb(gradient()), gradient())
    # The reference takes such an array for three rows of channels.
    assert to_rgb(gradient(3, 7)).shape == (3, 7, 3)


@pytest.mark.parametrize(
    "image", [np.zeros((2, 2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8), "a.png"]
)
def test_other_images_of_programs_are_refused(image: object) -> None:
    with pytest.raises(ShapeError):
        to_rgb(image)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(png_of(30_000, 30_000, png_chunk(b"IDAT", zlib.compress(bytes(1000)))), id="png"),
        pytest.param(
            b"GIF89a"
            + struct.pack("<HHBBB", 30_000, 30_000, 0, 0, 0)
            + b","
            + struct.pack("<HHHHB", 0, 0, 30_000, 30_000, 0)
            + b"\x02\x00;",
            id="gif",
        ),
        pytest.param(
            b"BM"
            + struct.pack("<IHHI", 100, 0, 0, 54)
            + struct.pack("<IiiHHIIiiII", 40, 30_000, 30_000, 1, 24, 0, 0, 0, 0, 0, 0),
            id="bmp",
        ),
        pytest.param(
            b"RIFF\x20\0\0\0WEBPVP8X" + struct.pack("<IB3x", 10, 0) + b"\xff\x3f\0\xff\x3f\0" + bytes(20),
            id="webp-extended",
        ),
        pytest.param(
            b"RIFF\x20\0\0\0WEBPVP8L"
            + struct.pack("<IB", 10, 0x2F)
            + struct.pack("<I", 0x3FFF | 0x3FFF << 14)
            + bytes(20),
            id="webp-lossless",
        ),
    ],
)
def test_a_large_raster_is_refused_by_its_header(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="pixels"):
            decode_image(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_jpeg_with_many_scans_is_refused() -> None:
    data = encoded(images.fromarray(gradient(16, 16)), "JPEG", progressive=True)
    assert decode_image(data).shape == (16, 16, 3)
    with pytest.raises(RequestError, match="scans"):
        decode_image(data[:-2] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" * 200 + b"\xff\xd9")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_every_cut_and_flipped_file_is_an_image_or_a_request_error(kind: str) -> None:
    data = encoded(images.fromarray(gradient(24, 31)), kind)
    rng = np.random.default_rng(7)
    for n in {*range(0, len(data), max(1, len(data) // 40)), len(data) - 1}:
        _decode_or_refuse(data[:n])
    for _ in range(150):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            damaged[place] ^= int(rng.integers(1, 256))
        _decode_or_refuse(bytes(damaged))


def _decode_or_refuse(data: bytes) -> None:
    message = ""
    try:
        image = decode_image(data, max_pixels=1_000_000)
    except RequestError as error:
        message = str(error)
    else:
        assert image.dtype == np.uint8
        assert image.shape[2] == 3
    assert " at 0x" not in message


@pytest.mark.parametrize("data", [b"", b"%PDF-1.4", b"<svg/>", b"II*\0" + bytes(40), b"8BPS" + bytes(40), b"GIF"])
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match="PNG, JPEG"):
        decode_image(data)


def test_limits_of_bytes() -> None:
    with pytest.raises(RequestError, match="11 bytes"):
        decode_image(bytes(11), max_bytes=10)
    with pytest.raises(RequestError, match="10 bytes"):
        decode_data_url("data:image/png;base64," + "A" * 100, max_bytes=10)


def test_data_urls() -> None:
    payload = base64.b64encode(b"\x00picture").decode()
    for head in ("data:image/png;base64,", "DATA:image/svg+xml;charset=utf-8;base64,", "data:;base64,"):
        assert decode_data_url(head + payload) == b"\x00picture"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "/etc/passwd",
        "",
        "data:image/png,abc",
        "data:image/png;base64,ab*d",
    ],
)
def test_nothing_else_is_fetched(url: str) -> None:
    with pytest.raises(RequestError):
        decode_data_url(url)
