"""The JSON files of a checkpoint folder, read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ..errors import LoadError

_T = TypeVar("_T")
_MAX_BYTES = 256 << 20


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON object.  LoadError when the file is absent, too large or something else."""
    if not path.is_file():
        raise LoadError(f"[convert] '{path}' must be there but is not")
    if path.stat().st_size > _MAX_BYTES:
        raise LoadError(f"[convert] '{path}' must be at most {_MAX_BYTES} bytes")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"[convert] '{path}' must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"[convert] '{path}' must hold a JSON object")
    return value


class Fields:
    """Typed access to a JSON object; what is absent or of another type is a LoadError that names it."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self.where = where
        self.values = values

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def _get(self, name: str, kinds: tuple[type, ...], default: _T | None, words: str) -> object:
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise LoadError(f"[convert] '{name}' must be in {self.where} but is not")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise LoadError(f"[convert] '{name}' of {self.where} must be {words} but is {type(value).__name__}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 to 2^31 - 1."""
        value = self._get(name, (int,), default, "a whole number")
        assert isinstance(value, int)
        if not 0 <= value < 2**31:
            raise LoadError(f"[convert] '{name}' of {self.where} must be 0 to 2^31 - 1 but is {value}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, (int, float), default, "a number")
        assert isinstance(value, (int, float))
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._get(name, (str,), default, "a string"))

    def flag(self, name: str, default: bool | None = None) -> bool:
        return bool(self._get(name, (bool,), default, "a boolean"))

    def inner(self, name: str) -> Fields:
        """A nested object; empty when absent."""
        value = self._get(name, (dict,), {}, "an object")
        assert isinstance(value, dict)
        return Fields(f"'{name}' of {self.where}", value)
