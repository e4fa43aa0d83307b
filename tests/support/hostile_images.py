"""Files that a client may send as an image to make a server fail: by name, and whether they are images nevertheless."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

__all__ = ["harmless_images", "hostile_images", "png_file"]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_file(width: int, height: int, *extra: bytes, data: bytes | None = None) -> bytes:
    """Return a PNG file of black pixels, with more chunks before the data."""
    if data is None:
        data = zlib.compress(bytes((1 + 3 * width) * height))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _file(kind: str, size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    import PIL.Image

    stream = io.BytesIO()
    PIL.Image.effect_noise(size, 50).convert("RGB").save(stream, kind, **options)
    return stream.getvalue()


def _jpeg_of_size(width: int, height: int) -> bytes:
    """Return a JPEG file whose header has another size than its data."""
    data = _file("JPEG")
    at = data.index(b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def _webp_of_canvas(width: int, height: int) -> bytes:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + bytes(4) + sizes + b"ANIM" + struct.pack("<I", 6) + bytes(6)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _many_scans(n: int) -> bytes:
    """Return a progressive JPEG file that repeats a scan."""
    data = _file("JPEG", progressive=True)
    begin = data.rindex(b"\xff\xda")
    return data[:begin] + data[begin:-2] * n + b"\xff\xd9"


def hostile_images() -> dict[str, bytes]:
    """Return files that must be refused."""
    bomb = zlib.compress(bytes(64 << 20), 9)
    cut = {f"cut {kind}": (data := _file(kind))[: len(data) * 2 // 3] for kind in ("PNG", "JPEG", "WEBP")}
    return {
        "30000x30000 PNG": png_file(30_000, 30_000, data=zlib.compress(bytes(1 << 20))),
        "2147483647x1 PNG": png_file(2**31 - 1, 1, data=b""),
        "0x0 PNG": png_file(0, 0),
        "65500x65500 JPEG": _jpeg_of_size(65_500, 65_500),
        "16384x16384 WebP": _webp_of_canvas(16_384, 16_384),
        "30000x30000 BMP": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 30_000, 30_000, 1, 24, 0, 0, 0, 0, 0, 0),
        "65535x65535 GIF": b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x08\x00;",
        "text bomb": png_file(64, 64, chunk(b"zTXt", b"a\0\0" + bomb)),
        "1000 scans": _many_scans(1000),
        "1x900 PNG": png_file(1, 900),
        "900x1 PNG": png_file(900, 1),
        **cut,
        "no data": png_file(64, 64, data=b""),
        "wrong checksum": png_file(64, 64)[:-20] + bytes(20),
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg' width='99999' height='99999'/>",
        "PDF": b"%PDF-1.7\n" + bytes(100),
        "TIFF": b"II*\0" + bytes(100),
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run",
        "ICO": b"\0\0\1\0\1\0" + bytes(100),
        "empty": b"",
    }  # fmt: skip


def harmless_images() -> dict[str, bytes]:
    """Return images with something odd in them that may be read, or refused."""
    import PIL.Image

    frames = [PIL.Image.new("RGB", (40, 40), (i % 256, 0, 0)) for i in range(300)]
    animation, moving = io.BytesIO(), io.BytesIO()
    frames[0].save(animation, "GIF", save_all=True, append_images=frames[1:])
    frames[0].save(moving, "PNG", save_all=True, append_images=frames[1:9])
    exif = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01\x12\0\x03\xff\xff\xff\xff\0\0\0\0" * 99
    return {
        "300 frames GIF": animation.getvalue(),
        "9 frames PNG": moving.getvalue(),
        "many frames announced": png_file(64, 64, chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
        "ICC garbage": png_file(64, 64, chunk(b"iCCP", b"x\0\0" + zlib.compress(b"\xff" * 999))),
        "ICC bomb": png_file(64, 64, chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(64 << 20), 9))),
        "EXIF garbage": _file("JPEG", exif=exif),
        "7000x7000 PNG": png_file(7000, 7000),
    }
