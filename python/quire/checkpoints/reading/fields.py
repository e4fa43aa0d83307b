"""Read the JSON files of a checkpoint folder strictly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from ...errors import LoadError, UnsupportedError
from .reference import Reference

_T = TypeVar("_T")
_MAX_BYTES = 256 << 20
# Fields that count layers or dimensions are bounded before anything is made for each.
MAX_LAYERS, MAX_HEAD_DIM = 1024, 1024
_LAYERS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "num_transformer_layers",
    "encoder_layers", "decoder_layers", "depth", "H_cycles", "L_cycles",
)  # fmt: skip


def read_json(path: Path, place: str = "convert") -> Mapping[str, object]:
    """Read a JSON object.

    Raises LoadError, whose message begins with ``place``, if the file is missing, too large or not a JSON object.
    """
    if not path.parent.is_dir():
        raise LoadError(f"[{place}] folder not found: {path.parent}")
    if not path.is_file():
        raise LoadError(f"[{place}] file not found: {path}")
    if path.stat().st_size > _MAX_BYTES:
        raise LoadError(f"[{place}] '{path}' is larger than {_MAX_BYTES} bytes")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"[{place}] '{path}' is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise LoadError(f"[{place}] '{path}' is not a JSON object")
    return value


class Fields:
    """Typed access to a JSON object.  A missing field or one of the wrong type raises a LoadError that names it.

    It remembers which fields were read, so that ``refuse_unread`` can reject the others by name.  A null field counts
    as absent; call ``is_null`` first if null has a meaning of its own.  Error messages begin with ``place``.

    ``reference`` describes the fields that transformers knows.  An unread field that it does not know is ignored, and
    ``refuse_unread`` returns its name.  Without a reference, every field must be read.
    """

    def __init__(
        self, where: str, values: Mapping[str, object], place: str = "convert", reference: Reference | None = None
    ) -> None:
        self.where = where
        self._place = place
        self._reference = reference
        self._values = values
        self._read: set[str] = set()
        self._inner: dict[str, Fields] = {}

    def names(self) -> list[str]:
        """Return the names of all fields.  They do not count as read."""
        return list(self._values)

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self._values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Return whether the field is present and null."""
        return name in self._values and self._values[name] is None

    def value(self, name: str) -> object:
        """Return the field's value of any type; None if it is absent."""
        self._read.add(name)
        return self._values.get(name)

    def _get(self, name: str, kinds: tuple[type, ...], default: _T | None, words: str) -> object:
        value = self.value(name)
        if value is None:
            if default is None:
                raise LoadError(f"[{self._place}] '{name}' is missing in {self.where}")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise LoadError(f"[{self._place}] '{name}' of {self.where} is {type(value).__name__}: expected {words}")
        return value

    def integer(self, name: str, default: int | None = None, *, low: int = 0) -> int:
        """Return an integer from ``low`` to 2^31 - 1, or less for layers and for a head's dimensions."""
        value = self._get(name, (int,), default, "a whole number")
        assert isinstance(value, int)
        most = MAX_LAYERS if name in _LAYERS else MAX_HEAD_DIM if name.endswith("head_dim") else 2**31 - 1
        if not low <= value <= most:
            words = "2^31 - 1" if most == 2**31 - 1 else str(most)
            raise LoadError(f"[{self._place}] '{name}' of {self.where} is {value}: expected {low} to {words}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, (int, float), default, "a number")
        assert isinstance(value, (int, float))
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._get(name, (str,), default, "a string"))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a boolean.

        Null counts as absent only if the default is not true, since transformers takes null for false.
        """
        if default and self.is_null(name):
            raise UnsupportedError(f"[{self._place}] '{name}' of {self.where} is null: expected true or false")
        return bool(self._get(name, (bool,), default, "a boolean"))

    def items(self, name: str) -> list[object]:
        """Return an array; empty if absent."""
        value = self._get(name, (list,), [], "an array")
        assert isinstance(value, list)
        return value

    def inner(self, name: str) -> Fields:
        """Return a nested object, whose fields must be read too; empty if absent."""
        value = self._get(name, (dict,), {}, "an object")
        assert isinstance(value, dict)
        if name not in self._inner:
            reference = self._reference.section(name, value) if self._reference is not None else None
            self._inner[name] = Fields(f"'{name}' of {self.where}", value, self._place, reference)
        return self._inner[name]

    def filled(self, defaults: Mapping[str, object]) -> Fields:
        """Set defaults for absent fields, and return these fields."""
        self._values = {**defaults, **self._values}
        return self

    def read(self, names: Iterable[str]) -> None:
        """Count fields without effect as read."""
        self._read.update(names)

    def was_read(self, name: str) -> bool:
        """Return whether the value of the field was read."""
        return name in self._read

    def knows(self, name: str) -> bool:
        """Return whether the reference uses a field of this name.  The field does not count as read."""
        return self._reference is None or self._reference.knows(name)

    def default(self, name: str) -> object:
        """The default of the reference for the field; None if it has none."""
        return self._reference.default(name) if self._reference is not None else None

    def has_default(self, name: str) -> bool:
        """Return whether the reference reads the field and has a default for it."""
        return self.default(name) is not None

    def is_default(self, name: str) -> bool:
        """Return whether the field has the default value of the reference.  The field does not count as read."""
        return self._reference is not None and self._reference.is_default(name, self._values.get(name))

    def unread(self, without_effect: Iterable[str] = ()) -> list[str]:
        """Return unread fields with a value other than the default, except those that match ``without_effect``."""
        patterns = list(without_effect)
        return [
            name
            for name, value in self._values.items()
            if name not in self._read
            and value not in (None, [], {})
            and not self.is_default(name)
            and not any(fnmatchcase(name, pattern) for pattern in patterns)
        ]

    def refuse_unread(self, without_effect: Iterable[str] = ()) -> list[str]:
        """Return the names of unread fields that the reference does not know either.

        Raises UnsupportedError for an unread field that may change an answer: its value is not the reference's default,
        and it matches no pattern of ``without_effect``.
        """
        patterns, unknown = list(without_effect), []
        for name in self.unread(patterns):
            if self._reference is None or self._reference.has_effect(name):
                raise UnsupportedError(f"[{self._place}] unsupported field '{name}' of {self.where}")
            if not self._reference.is_without_effect(name):
                unknown.append(name)
        for name, inner in self._inner.items():
            unknown += [f"{name}.{each}" for each in inner.refuse_unread(patterns)]
        return unknown
