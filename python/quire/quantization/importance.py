"""Importance matrices: what an error in each column of a matrix costs, measured over a text.

Files are llama.cpp's: GGUF files with sums of squared inputs (``NAME.in_sum2``) and counts (``NAME.counts``), and the
older form without a header.
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
    """Of one tensor: ``squares`` [n_matrix, n_columns], summed over ``counts`` [n_matrix] rows of input."""

    squares: Floats
    counts: Floats

    def mean(self) -> Floats:
        """Mean squares [n_matrix, n_columns]; ones for a matrix that no row came to."""
        import numpy as np

        counts = self.counts[:, None]
        ones = np.ones_like(self.squares)
        return np.divide(self.squares, counts, out=ones, where=counts > 0)


@dataclass
class Importance:
    """Sums by the name of the tensor; ``datasets``: the texts, ``n_chunks`` pieces of ``chunk_tokens`` of them.

    ``counts_calls``: counts are of chunks and not of rows, as the older form has them; see ``to_rows``.
    """

    sums: dict[str, Sums] = field(default_factory=dict)
    datasets: list[str] = field(default_factory=list)
    n_chunks: int = 0
    chunk_tokens: int = 0
    path: str = ""
    counts_calls: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Importance:
        """From a file of either form.  LoadError for what is none, or holds what is no importance."""
        try:
            with Path(path).open("rb") as file:
                is_gguf = file.read(4) == b"GGUF"
                file.seek(0)
                made = _read_gguf(path) if is_gguf else _read_legacy(file)
        except OSError as error:
            raise LoadError(f"[imatrix] '{os.fspath(path)}' must be readable but: {error.strerror}") from error
        made.path = os.fspath(path)
        made._check()
        return made

    def write(self, path: str | os.PathLike[str]) -> None:
        """As a GGUF file, beside its place and renamed."""
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
        """In the form without a header, beside its place and renamed; what no row came to is left out."""
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
        """Count rows where calls are counted, ``chunk_tokens`` for each, so that other texts may be added."""
        if self.counts_calls:
            for sums in self.sums.values():
                sums.squares *= chunk_tokens
                sums.counts *= chunk_tokens
        self.counts_calls = False
        self.chunk_tokens = self.chunk_tokens or chunk_tokens

    def merge(self, other: Importance) -> None:
        """Add what was measured over another text.  RequestError for a tensor of another shape."""
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
        """Keep the tensors whose names hold one of ``include``, or none of ``exclude``."""
        kept = (name for name in self.sums if not include or any(part in name for part in include))
        self.sums = {name: self.sums[name] for name in kept if not any(part in name for part in exclude)}

    def _check(self) -> None:
        import numpy as np

        for name, sums in self.sums.items():
            numbers = (sums.squares, sums.counts)
            if not all(np.isfinite(one).all() and (one >= 0).all() for one in numbers):
                raise LoadError(f"[imatrix] the sums of '{name}' must be finite and not negative but are not")


def _alike(name: str, one: Sums, other: Sums) -> tuple[Sums, Sums]:
    """Both with as many matrices: a file may have one count for all matrices of a tensor."""
    import numpy as np

    if one.squares.size == other.squares.size:
        n_matrix = max(len(one.counts), len(other.counts))
        if min(len(one.counts), len(other.counts)) in (1, n_matrix):
            first, second = (
                Sums(sums.squares.reshape(n_matrix, -1), np.broadcast_to(sums.counts, (n_matrix,)))
                for sums in (one, other)
            )
            return first, second
    raise RequestError(f"[imatrix] '{name}' must have one shape but has {one.squares.shape} and {other.squares.shape}")


def _read_gguf(path: str | os.PathLike[str]) -> Importance:
    import numpy as np

    reader = GGUFReader(path)
    made = Importance()
    names = {info.name for info in reader.tensors}
    bases = sorted({name.removesuffix(SUMS).removesuffix(COUNTS) for name in names if name.endswith((SUMS, COUNTS))})
    if not bases:
        raise LoadError(f"[imatrix] '{os.fspath(path)}' must hold sums ({SUMS}) but does not")
    for name in bases:
        for suffix in (SUMS, COUNTS):
            if name + suffix not in names or str(reader.tensor_info(name + suffix).dtype) != "f32":
                raise LoadError(f"[imatrix] '{name}{suffix}' must be there as f32 but is not")
        counts = np.array(reader.tensor(name + COUNTS).numpy(), np.float32).reshape(-1)
        squares = np.array(reader.tensor(name + SUMS).numpy(), np.float32)
        if squares.size % len(counts):
            raise LoadError(f"[imatrix] '{name}' must have columns for each of {len(counts)} matrices but has not")
        made.sums[name] = Sums(squares.reshape(len(counts), -1), np.rint(counts))
    metadata = reader.metadata
    if "imatrix.datasets" in metadata:
        made.datasets = [one.decode("utf-8", "surrogateescape") for one in metadata.strings("imatrix.datasets")]
    made.n_chunks = metadata.integer("imatrix.chunk_count", 0)
    made.chunk_tokens = metadata.integer("imatrix.chunk_size", 0)
    return made


def _read_legacy(file: BinaryIO) -> Importance:
    """Number of entries; for each: name, number of calls, means times calls; at the end the chunks and the text."""
    import numpy as np

    def number(low: int, high: int) -> int:
        data = file.read(4)
        value = struct.unpack("<i", data)[0] if len(data) == 4 else -1
        if not low <= value <= high:
            raise LoadError(f"[imatrix] the file must be an importance matrix but is not (a number of {value})")
        return int(value)

    made = Importance(counts_calls=True)
    for _ in range(number(1, 1 << 20)):
        name = file.read(number(1, _MOST_NAME_BYTES)).decode("utf-8", "surrogateescape")
        n_calls = number(0, 2**31 - 1)
        n = number(1, _MOST_VALUES)
        data = file.read(4 * n)
        if len(data) != 4 * n:
            raise LoadError(f"[imatrix] '{name:.60}' must have {n} numbers but has {len(data) // 4}")
        values = np.frombuffer(data, "<f4")
        made.sums[name] = Sums(values.reshape(1, -1).copy(), np.array([n_calls or 1], np.float32))
    rest = file.read(8)
    if len(rest) == 8:
        made.n_chunks, length = struct.unpack("<ii", rest)
        if 0 < length <= _MOST_NAME_BYTES:
            made.datasets = [file.read(length).decode("utf-8", "surrogateescape")]
    return made
