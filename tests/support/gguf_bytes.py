"""Valid and invalid GGUF files, written byte by byte with struct from the format's specification."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<B",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}


def text(value: bytes | str, n: int | None = None) -> bytes:
    """Return a string with its length, or with a wrong length."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if n is None else n) + raw


def value(kind: int, content: object) -> bytes:
    """Return a typed value."""
    body = text(content) if kind == STRING else struct.pack(_CODES[kind], content)  # type: ignore[arg-type]
    return struct.pack("<I", kind) + body


def array(kind: int, contents: list[object], n: int | None = None) -> bytes:
    """Return a typed array, or one with a wrong number of elements."""
    body = b"".join(text(c) if kind == STRING else struct.pack(_CODES[kind], c) for c in contents)  # type: ignore[arg-type]
    return struct.pack("<IIQ", ARRAY, kind, len(contents) if n is None else n) + body


@dataclass
class Info:
    """The entry of a tensor."""

    name: bytes | str = "w"
    dims: tuple[int, ...] = (4,)  # fastest-varying first, as in files
    dtype: int = 0
    offset: int = 0
    n_dims: int | None = None
    name_length: int | None = None

    def encode(self) -> bytes:
        n_dims = len(self.dims) if self.n_dims is None else self.n_dims
        out = text(self.name, self.name_length) + struct.pack("<I", n_dims)
        return out + b"".join(struct.pack("<Q", dim) for dim in self.dims) + struct.pack("<IQ", self.dtype, self.offset)


@dataclass
class File:
    """A whole file, of which every field can be wrong."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: list[tuple[bytes | str, bytes]] = field(
        default_factory=lambda: [("general.architecture", value(STRING, "llama"))]
    )
    tensors: list[Info] = field(default_factory=lambda: [Info()])
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32
    data: bytes = bytes(64)

    def encode(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        out = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys)
        out += b"".join(text(key) + content for key, content in self.keys)
        out += b"".join(info.encode() for info in self.tensors)
        return out + bytes(-len(out) % self.alignment) + self.data
