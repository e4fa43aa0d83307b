"""Importance matrices: the cost of an error in each column of a matrix, measured on a text.

Files have llama.cpp's formats: GGUF files with sums of squared inputs (``NAME.in_sum2``) and counts (``NAME.counts``),
and the older format without a header.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import LoadError, RequestError
from ..files.gguf import GGUFReader, GGUFWriter
from ..files.whole_file import WholeFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

__all__ = ["Importance", "Sums"]

SUMS, COUNTS = ".in_sum2", ".counts"
_MOST_NAME_BYTES, _MOST_VALUES = 1 << 12, 1 << 28


@dataclass
class Sums:
    """The sums of one tensor: ``squares`` [n_matrix, n_columns] over ``counts`` [n_matrix] rows of input."""

    squares: Floats
    counts: Floats

    def mean(self) -> Floats:
        """Return the mean squares [n_matrix, n_columns]; ones for a matrix without rows."""
        import numpy as np

        counts = self.counts[:, None]
        ones = np.ones_like(self.squares)
        return np.divide(self.squares, counts, out=ones, where=counts > 0)


@dataclass
class Importance:
    """The sums of all tensors.

    Attributes:
        sums: Sums by the name of the tensor.
        datasets: Names of the texts.
        n_chunks: Number of chunks of the texts.
        chunk_tokens: Tokens per chunk.
        counts_calls: Counts are chunks instead of rows, as in the older format; see ``to_rows``.
    """

    sums: dict[str, Sums] = field(default_factory=dict)
    datasets: list[str] = field(default_factory=list)
    n_chunks: int = 0
    chunk_tokens: int = 0
    path: str = ""
    counts_calls: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Importance:
        """Read a file of either format.  Raises LoadError if it is malformed or has invalid numbers."""
        try:
            with Path(path).open("rb") as file:
                is_gguf = file.read(4) == b"GGUF"
                file.seek(0)
                made = _read_gguf(path) if is_gguf else _read_legacy(file)
        except OSError as error:
            raise LoadError(f"[imatrix] cannot read '{os.fspath(path)}': {error.strerror}") from error
        made.path = os.fspath(path)
        made._check()
        return made

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a GGUF file atomically."""
        import numpy as np

        names = sorted(self.sums)
        with GGUFWriter(path, "imatrix") as writer:
            writer.set("general.type", "imatrix")
            writer.set("imatrix.datasets", self.datasets, "string[]")
            writer.set("imatrix.chunk_count", self.n_chunks, "u32")
            writer.set("imatrix.chunk_size", self.chunk_tokens, "u32")
            for name in names:
                writer.add_tensor(name + SUMS, "f32", self.sums[name].squares.shape)
                writer.add_tensor(name + COUNTS, "f32", (len(self.sums[name].counts), 1))
            for name in names:
                writer.write(name + SUMS, np.ascontiguousarray(self.sums[name].squares))
                writer.write(name + COUNTS, np.ascontiguousarray(self.sums[name].counts))

    def write_older(self, path: str | os.PathLike[str]) -> None:
        """Write the older format atomically, without tensors that have no rows."""
        import numpy as np

        names = [name for name in sorted(self.sums) if self.sums[name].counts.any()]
        with WholeFile(path, "imatrix") as file:
            file.write(struct.pack("<i", len(names)))
            for name in names:
                sums, encoded = self.sums[name], name.encode("utf-8", "surrogateescape")
                n_calls = -(-int(sums.counts.max()) // max(1, self.chunk_tokens))
                values = np.ascontiguousarray(sums.mean() * np.float32(n_calls), "<f4")
                file.write(struct.pack("<i", len(encoded)) + encoded)
                file.write(struct.pack("<ii", n_calls, values.size) + values.tobytes())
            dataset = (self.datasets[-1] if self.datasets else "").encode("utf-8", "surrogateescape")
            file.write(struct.pack("<ii", self.n_chunks, len(dataset)) + dataset)

    def to_rows(self, chunk_tokens: int) -> None:
        """Convert counts of chunks to rows, ``chunk_tokens`` each, so that other texts can be added."""
        if self.counts_calls:
            for sums in self.sums.values():
                sums.squares *= chunk_tokens
                sums.counts *= chunk_tokens
        self.counts_calls = False
        self.chunk_tokens = self.chunk_tokens or chunk_tokens

    def merge(self, other: Importance) -> None:
        """Add the sums of another text.  Raises RequestError if a tensor has another shape."""
        for name, sums in other.sums.items():
            if name in self.sums:
                own, more = _alike(name, self.sums[name], sums)
                self.sums[name] = Sums(own.squares + more.squares, own.counts + more.counts)
            else:
                self.sums[name] = Sums(sums.squares.copy(), sums.counts.copy())
        self.datasets += [name for name in other.datasets if name not in self.datasets]
        self.n_chunks += other.n_chunks
        self.chunk_tokens = self.chunk_tokens or other.chunk_tokens

    def select(self, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> None:
        """Keep the tensors whose names contain one of ``include``, or none of ``exclude``."""
        kept = (name for name in self.sums if not include or any(part in name for part in include))
        self.sums = {name: self.sums[name] for name in kept if not any(part in name for part in exclude)}

    def _check(self) -> None:
        import numpy as np

        for name, sums in self.sums.items():
            numbers = (sums.squares, sums.counts)
            if not all(np.isfinite(one).all() and (one >= 0).all() for one in numbers):
                raise LoadError(f"[imatrix] negative or infinite sums for '{name}'")


def _alike(name: str, one: Sums, other: Sums) -> tuple[Sums, Sums]:
    """Return both with the same number of matrices, as a file may have one count for all matrices of a tensor."""
    import numpy as np

    if one.squares.size == other.squares.size:
        n_matrix = max(len(one.counts), len(other.counts))
        if min(len(one.counts), len(other.counts)) in (1, n_matrix):
            first, second = (
                Sums(sums.squares.reshape(n_matrix, -1), np.broadcast_to(sums.counts, (n_matrix,)))
                for sums in (one, other)
            )
            return first, second
    raise RequestError(f"[imatrix] '{name}' has different shapes: {one.squares.shape} and {other.squares.shape}")


def _read_gguf(path: str | os.PathLike[str]) -> Importance:
    import numpy as np

    reader = GGUFReader(path)
    made = Importance()
    names = {info.name for info in reader.tensors}
    bases = sorted({name.removesuffix(SUMS).removesuffix(COUNTS) for name in names if name.endswith((SUMS, COUNTS))})
    if not bases:
        raise LoadError(f"[imatrix] no sums ({SUMS}) in '{os.fspath(path)}'")
    for name in bases:
        for suffix in (SUMS, COUNTS):
            if name + suffix not in names or str(reader.tensor_info(name + suffix).dtype) != "f32":
                raise LoadError(f"[imatrix] '{name}{suffix}' is missing or not f32")
        counts = np.array(reader.tensor(name + COUNTS).numpy(), np.float32).reshape(-1)
        squares = np.array(reader.tensor(name + SUMS).numpy(), np.float32)
        if squares.size % len(counts):
            raise LoadError(f"[imatrix] '{name}' has {squares.size} sums, which {len(counts)} matrices cannot share")
        made.sums[name] = Sums(squares.reshape(len(counts), -1), np.rint(counts))
    metadata = reader.metadata
    if "imatrix.datasets" in metadata:
        made.datasets = [one.decode("utf-8", "surrogateescape") for one in metadata.strings("imatrix.datasets")]
    made.n_chunks = metadata.integer("imatrix.chunk_count", 0)
    made.chunk_tokens = metadata.integer("imatrix.chunk_size", 0)
    return made


def _read_legacy(file: BinaryIO) -> Importance:
    """Read the older format: the number of entries, then name, calls and means times calls of each, chunks and text."""
    import numpy as np

    def number(low: int, high: int) -> int:
        data = file.read(4)
        value = struct.unpack("<i", data)[0] if len(data) == 4 else -1
        if not low <= value <= high:
            raise LoadError(f"[imatrix] not an importance matrix: the file has a number of {value}")
        return int(value)

    made = Importance(counts_calls=True)
    for _ in range(number(1, 1 << 20)):
        name = file.read(number(1, _MOST_NAME_BYTES)).decode("utf-8", "surrogateescape")
        n_calls = number(0, 2**31 - 1)
        n = number(1, _MOST_VALUES)
        data = file.read(4 * n)
        if len(data) != 4 * n:
            raise LoadError(f"[imatrix] truncated file: '{name:.60}' has {len(data) // 4} of {n} numbers")
        values = np.frombuffer(data, "<f4")
        made.sums[name] = Sums(values.reshape(1, -1).copy(), np.array([n_calls or 1], np.float32))
    rest = file.read(8)
    if len(rest) == 8:
        made.n_chunks, length = struct.unpack("<ii", rest)
        if 0 < length <= _MOST_NAME_BYTES:
            made.datasets = [file.read(length).decode("utf-8", "surrogateescape")]
    return made
