"""How a family's files in Ollama's form differ from llama.cpp's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..._native.core import DType, Tensor
from ...errors import LoadError
from ..changed_keys import ChangedKeys
from ..gguf import GGUFReader, Metadata
from .view import ChangedTensors, TranslatedReader

if TYPE_CHECKING:
    from .view import Array

__all__ = ["Default", "Form", "Translation", "as_f32", "joined", "rows_of"]

Default = tuple[str, object]  # a key's type and value
_NAME = re.compile(r"((?:[va]\.)?blk\.\d+\.)?(.+?)(\.weight|\.bias)?")


class Translation:
    """A file that is being translated: its keys and tensors as they are so far."""

    def __init__(self, reader: GGUFReader, arch: str) -> None:
        self.arch = arch
        self.keys, self.tensors = ChangedKeys(reader._reader), ChangedTensors(reader)
        self.metadata = Metadata(self.keys)

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer below the architecture's name."""
        return self.metadata.integer(f"{self.arch}.{name}", default)

    def set(self, name: str, kind: str, value: object) -> None:
        """Set a key below the architecture's name."""
        self.keys.set(f"{self.arch}.{name}", kind, value)

    def default(self, name: str, kind: str, value: object) -> None:
        """Set a key below the architecture's name that is missing."""
        self.keys.default(f"{self.arch}.{name}", kind, value)

    def blocks(self, begin: str = "blk") -> list[str]:
        """Return the prefixes of the layers' tensors: ``blk.0.``, ``blk.1.``, ..."""
        found = {re.match(rf"{begin}\.\d+\.", name) for name in self.tensors.names()}
        return sorted({match[0] for match in found if match is not None})


@dataclass(frozen=True)
class Form:
    """The differences of a family's files.

    Attributes:
        arch: llama.cpp's name of the architecture.
        old: Ollama's name, if it differs.
        fits: Returns whether a file is in Ollama's form.
        keys: New names of keys below the architecture's name.
        unused: Patterns of keys below it that have no effect.
        defaults: Missing keys below it, with their types and values.
        tensors: New names of tensors, without the number of the layer and perhaps without ``.weight`` or ``.bias``.
        wanted: Returns whether a tensor belongs to the model.
        change: Makes all other changes, after those of the tables.
    """

    arch: str
    old: str = ""
    fits: Callable[[GGUFReader], bool] = lambda reader: True
    keys: Mapping[str, str] = field(default_factory=dict)
    unused: Sequence[str] = ()
    defaults: Mapping[str, Default] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    wanted: Callable[[str], bool] = lambda name: True
    change: Callable[[Translation], None] = lambda translation: None

    def translated(self, reader: GGUFReader) -> GGUFReader:
        """Return the file in llama.cpp's form."""
        made = Translation(reader, self.arch)
        keys, old = made.keys, self.old or self.arch
        for key in made.metadata if old != self.arch else ():
            if key.startswith(f"{old}."):
                keys.move(key, f"{self.arch}{key[len(old) :]}")
        keys.set("general.architecture", "string", self.arch)
        for key, to in self.keys.items():
            keys.move(f"{self.arch}.{key}", f"{self.arch}.{to}")
        for key in made.metadata:
            if any(fnmatchcase(key, f"{self.arch}.{pattern}") for pattern in self.unused):
                keys.remove(key)
        for key, (kind, value) in self.defaults.items():
            made.default(key, kind, value)
        made.tensors.keep(self.wanted)
        made.tensors.rename(self._renamed)
        self.change(made)
        return TranslatedReader(reader, keys, made.tensors)

    def _renamed(self, name: str) -> str:
        match = _NAME.fullmatch(name)
        if match is None:  # a name with a line break
            return name
        block, module, suffix = match[1] or "", match[2], match[3] or ""
        if module + suffix in self.tensors:
            return block + self.tensors[module + suffix]
        to = self.tensors.get(module, module)
        return block + to if suffix and to.endswith(suffix) else block + to + suffix  # llama.cpp's name already


def rows_of(begin: int, end: int, step: int = 1) -> Callable[[Sequence[Tensor]], list[Array]]:
    """Return a function that takes rows of a matrix, or of each matrix of a stack."""

    def take(tensors: Sequence[Tensor]) -> list[Array]:
        (tensor,) = tensors
        n_rows = tensor.shape[-2] if len(tensor.shape) > 1 else tensor.shape[0]
        storage = tensor.numpy().reshape(-1).view("u1")
        # Bytes of a row, or of a number of a vector.
        n_stacks = tensor.shape[0] if len(tensor.shape) == 3 else 1
        return [storage.reshape(n_stacks, n_rows, -1)[:, begin:end:step].copy()]

    return take


def joined(made: Translation, name: str, parts: Sequence[str]) -> None:
    """Join the rows of matrices, or vectors, into one tensor; as f32 if their types differ."""
    shapes, dtypes = [made.tensors.shape(part) for part in parts], {made.tensors.place(part).dtype for part in parts}
    if len({shape[1:] for shape in shapes}) != 1:
        raise LoadError(f"[gguf] the shapes of {' and '.join(parts)} do not fit together")
    shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    if len(dtypes) == 1:
        made.tensors.make(name, parts, shape, lambda tensors: [tensor.numpy() for tensor in tensors])
    else:
        made.tensors.make(name, parts, shape, as_f32, DType("f32"))
    for part in parts:
        if part != name:
            made.tensors.remove(part)


def as_f32(tensors: Sequence[Tensor]) -> list[Array]:
    """Return the values of tensors, one after the other."""
    from ..._native.quant import dequantize

    return [dequantize(tensor) for tensor in tensors]
