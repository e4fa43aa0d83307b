"""Keys of a file with other values than the file's."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from .gguf import NUMBER_CODES, GGUFReader, Metadata

if TYPE_CHECKING:
    from .gguf import KeyReader

__all__ = ["ChangedKeys", "override_keys"]

KeyValue = bool | int | float | str


class ChangedKeys:
    """The keys of a file, some of them changed; has the methods that ``Metadata`` calls."""

    def __init__(self, source: KeyReader) -> None:
        self._source = source
        self._names = dict(zip(source.keys(), source.keys(), strict=True))  # by the name here, the name in the file
        self._own: dict[str, tuple[str, Any]] = {}  # type and value of keys that are not the file's

    def keys(self) -> list[str]:
        return [*self._names, *self._own]

    def has(self, key: str) -> bool:
        return key in self._names or key in self._own

    def value_type(self, key: str) -> str:
        return self._own[key][0] if key in self._own else self._source.value_type(self._names[key])

    def value(self, key: str) -> object:
        if key not in self._own:
            return self._source.value(self._names[key])
        kind, value = self._own[key]
        if kind not in NUMBER_CODES:
            return [text.decode("utf-8", "surrogateescape") for text in value] if kind == "string[]" else value
        import numpy as np

        return np.array(value, NUMBER_CODES[kind])

    def string_bytes(self, key: str) -> list[bytes]:
        return list(self._own[key][1]) if key in self._own else self._source.string_bytes(self._names[key])

    def packed_strings(self, key: str) -> tuple[bytes, int]:
        if key not in self._own:
            return self._source.packed_strings(self._names[key])
        texts = self._own[key][1]
        return b"".join(struct.pack("<Q", len(text)) + text for text in texts), len(texts)

    def packed_numbers(self, key: str) -> bytes:
        if key not in self._own:
            return self._source.packed_numbers(self._names[key])
        kind, values = self._own[key]
        return struct.pack(f"<{len(values)}{NUMBER_CODES[kind]}", *values)

    def set(self, key: str, kind: str, value: object) -> None:
        """Set a key; ``value`` of arrays is a sequence, of bytes for strings."""
        self.remove(key)
        self._own[key] = kind, value

    def default(self, key: str, kind: str, value: object) -> None:
        """Set a key that is missing."""
        if not self.has(key):
            self._own[key] = kind, value

    def move(self, key: str, to: str) -> None:
        """Rename a key, unless it is missing or there is a key with the new name."""
        if self.has(to):
            return
        if key in self._names:
            self._names[to] = self._names.pop(key)
        elif key in self._own:
            self._own[to] = self._own.pop(key)

    def remove(self, key: str) -> None:
        self._names.pop(key, None)
        self._own.pop(key, None)


# Types of keys that a value of Python fits, the first for new keys.
_KINDS: Mapping[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("u32", "i32", "u64", "i64", "u16", "i16", "u8", "i8"),
    float: ("f32", "f64"),
    str: ("string",),
}


def override_keys(reader: GGUFReader, values: Mapping[str, KeyValue]) -> None:
    """Let a reader return other values than its file's for some keys.

    Raises:
        RequestError: A value has another type than the file's.
    """
    keys = ChangedKeys(reader.metadata.reader)
    for key, value in values.items():
        kinds = _KINDS[type(value)]
        kind = keys.value_type(key) if keys.has(key) else kinds[0]
        if kind not in kinds:
            raise RequestError(f"[engine] override_kv: key '{key:.80}' is {kind} in the file, but {value!r:.40} is not")
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
            raise RequestError(f"[engine] override_kv: {value!r:.40} of '{key:.80}' is out of range")
        keys.set(key, kind, value)
    reader.metadata = Metadata(keys)
