"""Planning and writing a quantized file, with only a part of one tensor in memory at a time."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .._native.core import DType
from .._native.quant import can_quantize, dequantize, quantize
from ..errors import RequestError, UnsupportedError
from ..files.expressions import Expression
from ..files.gguf import GGUFReader, GGUFWriter
from .choice import Chooser, ModelFacts, exactly, fallback, needs_importance
from .importance import Importance
from .mixes import COPY, Mix, mix_named
from .roles import Role, is_quantizable, role_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.core import Tensor

__all__ = ["Plan", "Planned", "Wishes", "announce", "pieces", "place_of", "plan", "quantize_model"]

Progress = Callable[[int, int, str], None]  # finished tensors, all tensors, name
_SLAB_VALUES = 1 << 24
_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_VERSION, _FILE_TYPE = "general.quantization_version", "general.file_type"


@dataclass(frozen=True)
class Wishes:
    """A user's changes to a mix.

    Attributes:
        patterns: Expressions and the types of tensors whose names contain a match; the first match counts.
        pure: Ignore the mix's exceptions.
        keep_output: Do not quantize the head.
    """

    patterns: tuple[tuple[str, str], ...] = ()
    output_dtype: str | None = None
    embedding_dtype: str | None = None
    pure: bool = False
    keep_output: bool = False
    allow_requantize: bool = False

    def __post_init__(self) -> None:
        dtypes = [dtype for _, dtype in self.patterns]
        for dtype in (*dtypes, self.output_dtype, self.embedding_dtype):
            if dtype is not None and not _is_dtype(dtype):
                raise RequestError(f"[quantize] unknown type for a tensor: '{dtype:.40}'")
        self.expressions()

    def expressions(self) -> list[tuple[Expression, str]]:
        """Return the compiled patterns with their types."""
        what = "[quantize] the pattern of a tensor's type"
        return [(Expression(pattern, what, RequestError), dtype) for pattern, dtype in self.patterns]


def _is_dtype(name: str) -> bool:
    try:
        return can_quantize(DType(name))
    except UnsupportedError:
        return False


@dataclass(frozen=True)
class Planned:
    """A tensor with its old and new type; ``fell_back_from`` is the type whose blocks do not divide its rows."""

    name: str
    shape: tuple[int, ...]
    source: str
    dtype: str
    part: int = 0
    fell_back_from: str | None = None

    @property
    def source_bytes(self) -> int:
        return _bytes(self.source, self.shape)

    @property
    def n_bytes(self) -> int:
        return _bytes(self.dtype, self.shape)


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape[:-1]) * DType(dtype).row_bytes(shape[-1])


@dataclass(frozen=True)
class Plan:
    """The tensors of a file in its order: by layer, then by name.  ``mix`` is None for a copy."""

    mix: Mix | None
    tensors: tuple[Planned, ...]
    lacking: tuple[str, ...] = field(default=())  # tensors with so few bits that they need importance

    @property
    def n_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def source_bytes(self) -> int:
        return sum(tensor.source_bytes for tensor in self.tensors)

    @property
    def n_values(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)


def plan(reader: GGUFReader, mix: str, wishes: Wishes | None = None, importance: Importance | None = None) -> Plan:
    """Plan the type of each tensor of a file in a mix (``"Q4_K_M"``, ``"COPY"``, ...).

    Raises:
        RequestError: The mix is unknown, or the rows of head or embedding are not whole blocks.
        UnsupportedError: The source is already quantized, and the wishes do not allow quantizing it again.
    """
    wishes = wishes or Wishes()
    infos = sorted(reader.tensors, key=lambda info: place_of(info.name))
    if mix.upper() == COPY:
        kept = (Planned(info.name, info.shape, str(info.dtype), str(info.dtype), info.part) for info in infos)
        return Plan(None, tuple(kept))
    chosen = mix_named(mix)
    facts = ModelFacts.of(reader.metadata)
    chooser = Chooser(
        chosen,
        facts,
        [info.name for info in infos],
        importance is not None,
        wishes.output_dtype,
        wishes.embedding_dtype,
    )
    tensors, lacking = [], []
    expressions = wishes.expressions()
    for info in infos:
        source = str(info.dtype)
        named = next((dtype for expression, dtype in expressions if expression.search(info.name)), None)
        wanted, is_named = _wanted(chooser, wishes, named, info.name, info.shape)
        wanted = wanted or source
        settle = exactly if is_named else fallback
        dtype = settle(info.name, wanted, info.shape[-1]) if wanted != source else source
        if dtype != source and DType(source).block_size > 1 and not wishes.allow_requantize:
            raise UnsupportedError(
                f"[quantize] '{info.name}' is already {source}: quantize the original, or accept a larger error "
                "with --allow-requantize"
            )
        tensors.append(Planned(info.name, info.shape, source, dtype, info.part, None if wanted == dtype else wanted))
        if dtype != source and needs_importance(info.name, dtype, chosen) and not _has(importance, info.name):
            lacking.append(info.name)
    return Plan(chosen, tuple(tensors), tuple(lacking))


def _wanted(
    chooser: Chooser, wishes: Wishes, named: str | None, name: str, shape: tuple[int, ...]
) -> tuple[str | None, bool]:
    """Return the type of a tensor, None if it is kept, and True if the user chose it for this tensor.

    ``named`` is the type of the first pattern that matches the name.
    """
    if not is_quantizable(name, shape, chooser.model.architecture):
        return None, False
    role = role_of(name)
    if role is Role.OUTPUT and wishes.keep_output:
        return None, False
    # Per-layer embeddings are a large table of their own, so a pattern may choose their type.
    has_own = named is not None and name.startswith("per_layer")
    if wishes.embedding_dtype is not None and role is Role.EMBEDDING and not has_own:
        return wishes.embedding_dtype, True
    if wishes.output_dtype is not None and role is Role.OUTPUT:
        return wishes.output_dtype, True
    if not chooser.mix.is_quantized or (wishes.pure and named is None):
        return chooser.mix.dtype, False
    return named or chooser.choose(name, shape), False


def _has(importance: Importance | None, name: str) -> bool:
    return importance is not None and name in importance.sums


def place_of(name: str) -> tuple[int, bytes]:
    """Return the sort key of a tensor in a file."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else -1, name.encode()


def quantize_model(
    reader: GGUFReader,
    out: str | os.PathLike[str],
    todo: Plan,
    *,
    importance: Importance | None = None,
    overrides: Mapping[str, tuple[str, object]] | None = None,
    keep_split: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the file of a plan, or with ``keep_split`` one per part of the source; return their paths.

    ``overrides`` are keys with type and value.  Each file appears when it is complete.

    Raises:
        RequestError: The importance that the plan needs is missing or belongs to another model.
        CapacityError: The disk is full.
    """
    _check_importance(todo)
    n_parts = reader.n_files if keep_split else 1
    paths = []
    done = 0
    for part in range(n_parts):
        path = _part_path(Path(out), part, n_parts) if n_parts > 1 else Path(out)
        tensors = [tensor for tensor in todo.tensors if n_parts == 1 or tensor.part == part]
        with GGUFWriter(path, reader.metadata.text("general.architecture")) as writer:
            if part == 0:
                _copy_keys(writer, reader, todo, importance, overrides or {})
            if n_parts > 1:
                writer.set("split.no", part, "u16")
                writer.set("split.count", n_parts, "u16")
                writer.set("split.tensors.count", len(todo.tensors), "i32")
            for tensor in tensors:
                writer.add_tensor(tensor.name, tensor.dtype, _without_leading_ones(tensor.shape))
            for tensor in tensors:
                if progress is not None:
                    progress(done, len(todo.tensors), tensor.name)
                for piece in pieces(reader, tensor, importance, threads):
                    writer.write(tensor.name, piece)
                done += 1
        paths.append(path)
    if progress is not None:
        progress(done, len(todo.tensors), "")
    return paths


def announce(writer: GGUFWriter, reader: GGUFReader, todo: Plan, importance: Importance | None) -> None:
    """Write everything that precedes the data.  Raises the errors of ``quantize_model``."""
    _check_importance(todo)
    _copy_keys(writer, reader, todo, importance, {})
    for tensor in todo.tensors:
        writer.add_tensor(tensor.name, tensor.dtype, _without_leading_ones(tensor.shape))


def _check_importance(todo: Plan) -> None:
    if todo.lacking:
        raise RequestError(
            f"[quantize] '{todo.lacking[0]}' and {len(todo.lacking) - 1} more tensors need importance for so few bits: "
            "give --imatrix"
        )


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape like ggml writes it, without leading ones."""
    first = next((i for i, n in enumerate(shape[:-1]) if n > 1), len(shape) - 1)
    return shape[first:]


def _part_path(out: Path, part: int, n_parts: int) -> Path:
    stem = out.name.removesuffix(".gguf")
    return out.with_name(f"{stem}-{part + 1:05}-of-{n_parts:05}.gguf")


def _copy_keys(
    writer: GGUFWriter, reader: GGUFReader, todo: Plan, importance: Importance | None,
    overrides: Mapping[str, tuple[str, object]],
) -> None:  # fmt: skip
    """Write the source's keys, then those about types, then the user's overrides."""
    own = (_VERSION, _FILE_TYPE, *_SPLIT_KEYS)
    writer.copy_metadata(reader.metadata, without=(*own, *overrides))
    writer.set(_VERSION, 2, "u32")
    number = reader.metadata.integer(_FILE_TYPE, 0) if todo.mix is None else todo.mix.file_type
    writer.set(_FILE_TYPE, number, "u32")
    for key, (kind, value) in overrides.items():
        writer.set(key, value, kind)
    if importance is not None:
        writer.set("quantize.imatrix.file", importance.path, "string")
        if importance.datasets:
            writer.set("quantize.imatrix.dataset", importance.datasets[0], "string")
        writer.set("quantize.imatrix.entries_count", len(importance.sums), "u32")
        if importance.n_chunks > 0:
            writer.set("quantize.imatrix.chunks_count", importance.n_chunks, "u32")


def pieces(reader: GGUFReader, tensor: Planned, importance: Importance | None, threads: int) -> Iterator[Tensor]:
    """Yield the storage of a tensor in its new type, some rows at a time."""
    source = reader.tensor(tensor.name)
    if tensor.source == tensor.dtype:
        yield source
        return
    weights = _weights(tensor, importance)
    storage = source.numpy().reshape(-1, source.numpy().shape[-1])
    n_columns = tensor.shape[-1]
    rows_of_matrix = tensor.shape[-2]
    most = max(1, _SLAB_VALUES // n_columns)
    for begin in range(0, len(storage), rows_of_matrix):
        row_weights = None if weights is None else weights[begin // rows_of_matrix]
        for at in range(begin, begin + rows_of_matrix, most):
            rows = storage[at : min(at + most, begin + rows_of_matrix)]
            values = dequantize(rows, tensor.source, threads=threads)
            yield quantize(values, tensor.dtype, row_weights, threads=threads)


def _weights(tensor: Planned, importance: Importance | None) -> npt.NDArray[np.float32] | None:
    """Return the importance ``[n_matrix, n_columns]`` of a tensor, if any."""
    if importance is None or tensor.name not in importance.sums:
        return None
    mean = importance.sums[tensor.name].mean()
    n_matrix = tensor.shape[0] if len(tensor.shape) == 3 else 1
    if mean.size == n_matrix * tensor.shape[-1]:  # all matrices may share one count
        mean = mean.reshape(n_matrix, -1)
    if mean.shape != (n_matrix, tensor.shape[-1]):
        if role_of(tensor.name) is Role.EMBEDDING:
            return None
        raise RequestError(
            f"[quantize] the importance of '{tensor.name}' belongs to another model: its shape is {mean.shape} instead "
            f"of {(n_matrix, tensor.shape[-1])}"
        )
    return mean
