"""Draw divergence against bits per weight, as a PNG and as text."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from ..files.whole_file import WholeFile

__all__ = ["bars_of", "write_picture"]

Point = tuple[float, float]
_WIDTH, _HEIGHT = 720, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 20, 20, 52
_WHITE, _BLACK, _GREY, _BLUE, _RED = 0, 1, 2, 3, 4
_COLOURS = ((255, 255, 255), (30, 30, 30), (215, 215, 215), (30, 90, 200), (210, 40, 40))
# Rows of three pixels, the high bit on the left.
_GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", ".": "00002", "-": "00700", "e": "07747", "b": "44757", "i": "20222", "t": "27223",
    "s": "03623", "k": "45655", "l": "62227", "/": "11244", "w": "00557", "n": "06555", "a": "03533", " ": "00000",
    "g": "35317", "h": "44655",
}  # fmt: skip
_SCALE = 3


class _Picture:
    """An image of palette indices."""

    def __init__(self) -> None:
        self.rows = [bytearray(_WIDTH) for _ in range(_HEIGHT)]

    def dot(self, x: float, y: float, colour: int, radius: int = 0) -> None:
        """Draw a square around a point."""
        for row in range(round(y) - radius, round(y) + radius + 1):
            for column in range(round(x) - radius, round(x) + radius + 1):
                if 0 <= row < _HEIGHT and 0 <= column < _WIDTH:
                    self.rows[row][column] = colour

    def line(self, start: Point, end: Point, colour: int, radius: int = 0) -> None:
        """Draw a line between two points."""
        n = max(1, round(max(abs(end[0] - start[0]), abs(end[1] - start[1]))))
        for i in range(n + 1):
            part = i / n
            self.dot(start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1]), colour, radius)

    def text(self, x: float, y: float, words: str) -> None:
        """Draw text with its upper left corner at (x, y).  A character without a glyph leaves a gap."""
        for character in words:
            for row, digit in enumerate(_GLYPHS.get(character, "00000")):
                for column in range(3):
                    if int(digit) >> (2 - column) & 1:
                        self.dot(x + column * _SCALE, y + row * _SCALE, _BLACK, 1)
            x += 4 * _SCALE

    def png(self) -> bytes:
        """Encode the image as a PNG with a palette."""

        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        head = chunk(b"IHDR", struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 3, 0, 0, 0))
        palette = chunk(b"PLTE", b"".join(bytes(colour) for colour in _COLOURS))
        data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(row) for row in self.rows), 9))
        return b"\x89PNG\r\n\x1a\n" + head + palette + data + chunk(b"IEND", b"")


def write_picture(path: Path, points: Sequence[Point], marked: Point, others: Sequence[Point] = ()) -> None:
    """Plot (bits, divergence) on a log scale and mark one point; ``others`` is a second curve, with dots."""
    picture = _Picture()
    everything = [*points, marked, *others]
    low_x, high_x = math.floor(min(x for x, _ in everything)), math.ceil(max(x for x, _ in everything))
    low_y = math.floor(min(math.log10(y) for _, y in everything))
    high_y = math.ceil(max(math.log10(y) for _, y in everything))
    high_y = max(high_y, low_y + 1)

    def place(point: Point) -> Point:
        x = _LEFT + (point[0] - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)
        y = _TOP + (high_y - math.log10(point[1])) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)
        return x, y

    for bits in range(low_x, high_x + 1):
        x, bottom = place((bits, 10**low_y))
        picture.line((x, _TOP), (x, bottom), _GREY)
        picture.text(x - 6, bottom + 8, str(bits))
    for power in range(low_y, high_y + 1):
        x, y = place((low_x, 10.0**power))
        picture.line((x, y), (_WIDTH - _RIGHT, y), _GREY)
        picture.text(8, y - 7, f"1e{power}")
    picture.text(_WIDTH / 2 - 60, _HEIGHT - 22, "bits / weight")
    picture.text(_LEFT + 8, _TOP + 6, "kl")
    drawn = [place(point) for point in points]
    for start, end in itertools.pairwise(drawn):
        picture.line(start, end, _BLUE, 1)
    for start, end in itertools.pairwise(place(point) for point in others):
        picture.line(start, end, _RED)
    for point in others:
        picture.dot(*place(point), _RED, 3)
    picture.dot(*place(marked), _RED, 4)
    with WholeFile(path, "recipe") as file:
        file.write(picture.png())


def bars_of(points: Sequence[Point]) -> list[str]:
    """Return one line per point, with a bar on a log scale of its divergence."""
    lows = [math.log10(y) for _, y in points]
    low, high = min(lows), max(lows)
    lines = ["bits / weight  divergence"]
    for (bits, divergence), power in zip(points, lows, strict=True):
        n = 1 + round(40 * (power - low) / (high - low)) if high > low else 1
        lines.append(f"{bits:13.3f}  {divergence:10.3g}  {'#' * n}")
    return lines
