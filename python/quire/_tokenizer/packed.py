"""String arrays in the layout of GGUF files, unpacked only on access."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

__all__ = ["PackedStrings", "picked"]


class PackedStrings(Sequence[str]):
    """A list of ``n`` strings in ``data``, each its length in 8 bytes (little-endian) and its UTF-8.

    The native tokenizers read ``data`` directly, so the few hundred thousand merges of a large vocabulary are never
    unpacked.
    """

    def __init__(self, data: bytes, n: int) -> None:
        self.data = data
        self.n = n

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._strings[index]

    @cached_property
    def _strings(self) -> list[str]:
        from quire._tokenizer.bpe import unpacked

        return unpacked(self.data, self.n)

    def pick(self, ids: Sequence[int]) -> list[str]:
        """The strings of ascending ids, without unpacking the others."""
        from quire._tokenizer.bpe import unpacked

        return unpacked(self.data, self.n, ids) if ids else []


def picked(strings: Sequence[str], ids: Sequence[int]) -> list[str]:
    """Return the strings with these ascending ids.  Packed strings stay packed, to save megabytes."""
    return strings.pick(ids) if isinstance(strings, PackedStrings) else [strings[id] for id in ids]
