"""Hand out the metadata keys of a model file to the model that reads them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..errors import LoadError, UnsupportedError
from ..files.gguf import REQUIRED, Metadata, Required
from .llama_cpp_keys import LLAMA_CPP_KEYS

_LOG = logging.getLogger("quire")


class Keys:
    """The keys below one architecture's name: ``keys.integer("block_count")`` reads ``llama.block_count``.

    Every key that llama.cpp reads must be read, listed as without effect or rejected by name (``finish``), so that
    no key that changes the answer is ignored.  Other keys are named in a warning.  A key that is missing (and has no
    default), has another type or is out of range raises a LoadError that names it.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.arch = metadata.text("general.architecture")
        self._metadata = metadata
        self._read: set[str] = set()
        self._without_effect: list[str] = []

    def full(self, name: str) -> str:
        """Return the key's whole name."""
        return f"{self.arch}.{name}"

    def has(self, name: str) -> bool:
        """Return whether the file has the key.  This does not count as reading it."""
        return self.full(name) in self._metadata

    def _reading(self, name: str) -> str:
        self._read.add(name)
        return self.full(name)

    def integer(self, name: str, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1) -> int:
        """Read an integer within ``[low, high]``."""
        return self._metadata.integer(self._reading(name), default, low=low, high=high)

    def number(self, name: str, default: float | Required = REQUIRED) -> float:
        """Read a finite number."""
        return self._metadata.number(self._reading(name), default)

    def text(self, name: str, default: str | Required = REQUIRED) -> str:
        return self._metadata.text(self._reading(name), default)

    def flag(self, name: str, default: bool | Required = REQUIRED) -> bool:
        return self._metadata.flag(self._reading(name), default)

    def is_array(self, name: str) -> bool:
        """Return whether the key holds an array.  This does not count as reading it."""
        return self.has(name) and self._metadata.type_of(self.full(name)).endswith("[]")

    def integers(
        self, name: str, n: int, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1
    ) -> list[int]:
        """Read an integer for each of ``n`` layers: an array, cut after ``n`` entries, or one number for all layers."""
        if not self.is_array(name):
            return [self.integer(name, default, low=low, high=high)] * n
        full = self._reading(name)
        values = self._metadata.array(full)
        if values.dtype.kind not in "biu" or len(values) < n:
            raise LoadError(f"[gguf] key '{full}' holds {len(values)} values of {values.dtype}: expected {n} integers")
        numbers = [int(value) for value in values[:n]]
        for number in numbers:
            if not low <= number <= high:
                raise LoadError(f"[gguf] key '{full}' holds {number}, out of range: expected {low} to {high}")
        return numbers

    def some_integers(self, name: str, *, low: int = 0, high: int = 2**31 - 1) -> list[int]:
        """Read an array of integers of any length."""
        return self.integers(name, len(self._metadata.array(self.full(name))), low=low, high=high)

    def numbers(self, name: str, n: int) -> list[float]:
        """Read a number (not nan) for each of ``n`` layers: an array, or one number for all layers."""
        if not self.is_array(name):
            return [self.number(name)] * n
        full = self._reading(name)
        values = self._metadata.array(full)
        if values.dtype.kind != "f" or len(values) < n or any(math.isnan(value) for value in values[:n]):
            raise LoadError(f"[gguf] key '{full}' holds {len(values)} values of {values.dtype}: expected {n} numbers")
        return [float(value) for value in values[:n]]

    def numbers_of(self, full: str, n: int) -> list[float]:
        """Read finite numbers as ``numbers`` does, from a key that does not begin with the architecture's name."""
        if full not in self._metadata or not self._metadata.type_of(full).endswith("[]"):
            return [self._metadata.number(full)] * n
        values = self._metadata.array(full)
        if values.dtype.kind != "f" or len(values) < n or not all(math.isfinite(value) for value in values[:n]):
            found = f"{len(values)} values of {values.dtype}"
            raise LoadError(f"[gguf] key '{full}' holds {found}: expected {n} finite numbers")
        return [float(value) for value in values[:n]]

    def same(
        self, name: str, n: int, default: int | Required = REQUIRED, *, low: int = 0, high: int = 2**31 - 1
    ) -> int:
        """Read an integer that is the same for all ``n`` layers, from one number or an array."""
        numbers = set(self.integers(name, n, default, low=low, high=high))
        if len(numbers) != 1:
            found = ", ".join(str(number) for number in sorted(numbers)[:4])
            raise UnsupportedError(f"[gguf] key '{self.full(name)}' differs between layers ({found}), unsupported here")
        return numbers.pop()

    def only(self, name: str, *allowed: bool | float | str) -> None:
        """Raise UnsupportedError if the key has a value other than those ``allowed``; it may be absent."""
        self._read.add(name)
        if not self.has(name):
            return
        value = self._metadata[self.full(name)]
        if not isinstance(value, (bool, int, float, str)) or value not in allowed:
            words = " or ".join(str(one) for one in allowed)
            raise UnsupportedError(f"[{self.arch}] unsupported '{self.full(name)}': {value} (expected {words})")

    def without_effect(self, *patterns: str) -> None:
        """Declare keys that do not change this model's answers."""
        self._without_effect += patterns

    def finish(self, known: Sequence[str] = ()) -> None:
        """Check that every key was read or declared; ``known``: more patterns without effect.

        Keys that llama.cpp does not read for any architecture are only named in a warning.

        Raises:
            UnsupportedError: A key that llama.cpp reads was neither read nor declared.
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
