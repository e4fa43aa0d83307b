"""The keys of a model file, handed out to the model that reads them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..errors import LoadError, UnsupportedError
from ..gguf import REQUIRED, Metadata, Required
from .llama_cpp_keys import LLAMA_CPP_KEYS

_LOG = logging.getLogger("quire")


class Keys:
    """The keys below one architecture's name: ``keys.integer("block_count")`` reads ``llama.block_count``.

    Every key that llama.cpp reads is read, or listed as without effect, or refused by name (``finish``), so that
    nothing that would change the answer is ignored.  Others are named in a warning.
    A key that is absent (without a default), of another type or out of range is a LoadError that names it.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.arch = metadata.text("general.architecture")
        self._metadata = metadata
        self._read: set[str] = set()
        self._without_effect: list[str] = []

    def full(self, name: str) -> str:
        """The key as the file has it."""
        return f"{self.arch}.{name}"

    def has(self, name: str) -> bool:
        """Whether the file has the key.  Asking is not reading."""
        return self.full(name) in self._metadata

    def _reading(self, name: str) -> str:
        self._read.add(name)
        return self.full(name)

    def integer(self, name: str, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1) -> int:
        """A whole number within ``[low, high]``."""
        return self._metadata.integer(self._reading(name), default, low=low, high=high)

    def number(self, name: str, default: float | Required = REQUIRED) -> float:
        """A finite number."""
        return self._metadata.number(self._reading(name), default)

    def text(self, name: str, default: str | Required = REQUIRED) -> str:
        return self._metadata.text(self._reading(name), default)

    def flag(self, name: str, default: bool | Required = REQUIRED) -> bool:
        return self._metadata.flag(self._reading(name), default)

    def is_array(self, name: str) -> bool:
        """Whether the key holds an array.  Asking is not reading."""
        return self.has(name) and self._metadata.type_of(self.full(name)).endswith("[]")

    def integers(
        self, name: str, n: int, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1
    ) -> list[int]:
        """One whole number for each of ``n`` layers: an array, whose entries past ``n`` are cut, or one for all."""
        if not self.is_array(name):
            return [self.integer(name, default, low=low, high=high)] * n
        full = self._reading(name)
        values = self._metadata.array(full)
        if values.dtype.kind not in "biu" or len(values) < n:
            raise LoadError(f"[gguf] key '{full}' must hold {n} whole numbers but has {len(values)} {values.dtype}")
        numbers = [int(value) for value in values[:n]]
        for number in numbers:
            if not low <= number <= high:
                raise LoadError(f"[gguf] key '{full}' must hold numbers from {low} to {high} but has {number}")
        return numbers

    def some_integers(self, name: str, *, low: int = 0, high: int = 2**31 - 1) -> list[int]:
        """An array of whole numbers, of any length."""
        return self.integers(name, len(self._metadata.array(self.full(name))), low=low, high=high)

    def numbers(self, name: str, n: int) -> list[float]:
        """One number (no nan) for each of ``n`` layers: an array, or one for all."""
        if not self.is_array(name):
            return [self.number(name)] * n
        full = self._reading(name)
        values = self._metadata.array(full)
        if values.dtype.kind != "f" or len(values) < n or any(math.isnan(value) for value in values[:n]):
            raise LoadError(f"[gguf] key '{full}' must hold {n} numbers but has {len(values)} {values.dtype}")
        return [float(value) for value in values[:n]]

    def numbers_of(self, full: str, n: int) -> list[float]:
        """Finite numbers, likewise, of a key that does not begin with the architecture's name."""
        if full not in self._metadata or not self._metadata.type_of(full).endswith("[]"):
            return [self._metadata.number(full)] * n
        values = self._metadata.array(full)
        if values.dtype.kind != "f" or len(values) < n or not all(math.isfinite(value) for value in values[:n]):
            raise LoadError(f"[gguf] key '{full}' must hold {n} finite numbers but has {len(values)} {values.dtype}")
        return [float(value) for value in values[:n]]

    def same(
        self, name: str, n: int, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1
    ) -> int:
        """A whole number that ``n`` layers have in common, in an array of such too."""
        numbers = set(self.integers(name, n, default, low=low, high=high))
        if len(numbers) != 1:
            raise UnsupportedError(f"[gguf] key '{self.full(name)}' must be the same for all layers but is not")
        return numbers.pop()

    def only(self, name: str, *allowed: bool | float | str) -> None:
        """UnsupportedError when the key is there with a value that the model does not compute."""
        self._read.add(name)
        if not self.has(name):
            return
        value = self._metadata[self.full(name)]
        if not isinstance(value, (bool, int, float, str)) or value not in allowed:
            words = " or ".join(str(one) for one in allowed)
            raise UnsupportedError(f"[{self.arch}] key '{self.full(name)}' must be {words} but is {value}")

    def without_effect(self, *patterns: str) -> None:
        """List keys that change no answer of this model."""
        self._without_effect += patterns

    def finish(self, known: Sequence[str] = ()) -> None:
        """Name keys in a warning that llama.cpp does not read either, whatever the architecture.

        UnsupportedError for one that it reads, nobody here read, and that is not listed.
        """
        patterns, unknown = [*self._without_effect, *known], []
        for key in self._metadata:
            name = key.removeprefix(f"{self.arch}.")
            if name == key or name in self._read or any(fnmatchcase(name, pattern) for pattern in patterns):
                continue
            if name in LLAMA_CPP_KEYS:
                raise UnsupportedError(f"[{self.arch}] unsupported metadata key '{key}' for this architecture")
            unknown.append(f"{key:.80}")
        if unknown:
            more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
            _LOG.warning("[%s] ignoring unknown metadata keys: %s%s", self.arch, ", ".join(unknown[:8]), more)
