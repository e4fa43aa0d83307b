"""Write GGUF files with other keys, in several parts, or joined from parts.  Weights are copied as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RequestError
from .gguf import GGUFReader, GGUFWriter

if TYPE_CHECKING:
    from .._native.gguf import TensorInfo

__all__ = ["split_file", "write_changed"]

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_MOST_PARTS = 65535
_ALIGNMENT = "general.alignment"  # not copied: the writer's own


def write_changed(
    reader: GGUFReader,
    out: str | os.PathLike[str],
    *,
    changed: Mapping[str, tuple[str, object]] | None = None,
    removed: Collection[str] = (),
    check: Callable[[Path], None] = lambda path: None,
) -> None:
    """Write a model, of all its parts, as one file.

    Args:
        reader: The model.
        out: The new file, which appears when it is complete.
        changed: Keys to set, with types and values.
        removed: Keys to leave out.
        check: Called with the unfinished file, whose weights are zeros; if it raises, there is no new file.

    Raises:
        RequestError: A key to leave out does not exist, or is the architecture.
        CapacityError: The disk is full.
    """
    for key in removed:
        if key == "general.architecture" or key not in reader.metadata:
            why = "every file needs it" if key in reader.metadata else "the file has no such key"
            raise RequestError(f"[gguf] cannot remove '{key:.80}': {why}")
    _write(reader, Path(out), reader.tensors, changed or {}, removed, check=check)


def split_file(
    reader: GGUFReader, out: str | os.PathLike[str], *, max_bytes: int | None = None, max_tensors: int | None = None
) -> list[Path]:
    """Write a model in parts named ``OUT-00001-of-00003.gguf``, as llama.cpp does; return their paths.

    Args:
        reader: The model.
        out: The beginning of the parts' paths, perhaps with ``.gguf``.
        max_bytes: Most bytes of weights in a part; a larger tensor has a part of its own.
        max_tensors: Most tensors in a part.

    Raises:
        RequestError: There would be too many parts.
        CapacityError: The disk is full.
    """
    parts: list[list[TensorInfo]] = [[]]
    size = 0
    for info in reader.tensors:
        is_full = max_bytes is not None and size + info.size_bytes > max_bytes
        if parts[-1] and (is_full or len(parts[-1]) == max_tensors):
            parts.append([])
            size = 0
        parts[-1].append(info)
        size += info.size_bytes
    if len(parts) > _MOST_PARTS:
        raise RequestError(f"[gguf] {len(parts)} parts are too many: at most {_MOST_PARTS}")
    stem, paths = Path(out).name.removesuffix(".gguf"), []
    for i, tensors in enumerate(parts):
        path = Path(out).with_name(f"{stem}-{i + 1:05}-of-{len(parts):05}.gguf")
        numbers = (("u16", i), ("u16", len(parts)), ("i32", len(reader.tensors)))
        keys = dict(zip(SPLIT_KEYS, numbers, strict=True))
        _write(reader, path, tensors, keys, () if i == 0 else list(reader.metadata))
        paths.append(path)
    return paths


def _write(
    reader: GGUFReader,
    out: Path,
    tensors: Sequence[TensorInfo],
    changed: Mapping[str, tuple[str, object]],
    removed: Collection[str],
    *,
    check: Callable[[Path], None] = lambda path: None,
) -> None:
    arch = reader.metadata.text("general.architecture")
    changed = dict(changed)
    _, alignment = changed.pop(_ALIGNMENT, ("", 32 if _ALIGNMENT in removed else reader.alignment))
    assert isinstance(alignment, int)
    with GGUFWriter(out, arch, alignment=alignment) as writer:
        writer.copy_metadata(reader.metadata, without={*SPLIT_KEYS, *removed, *changed})
        for key, (kind, value) in changed.items():
            writer.set(key, value, kind)
        for info in tensors:
            writer.add_tensor(info.name, info.dtype, info.shape)
        check(writer.reserve())
        for info in tensors:
            writer.write(info.name, reader.tensor(info.name))
