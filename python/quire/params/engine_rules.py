"""Rules of engine options whose values are paths, lists or pairs, and the texts of commands for them."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from ..errors import RequestError
from ..files.expressions import Expression
from .rules import Float, Rule, refusal

__all__ = [
    "Adapters",
    "JsonObject",
    "KeyValues",
    "LayerRange",
    "Layers",
    "NamedPaths",
    "Names",
    "Overrides",
    "PathText",
    "Shares",
    "read_adapters",
    "read_key_values",
    "read_named_paths",
    "read_overrides",
    "read_shares",
]


@dataclass(frozen=True)
class PathText(Rule):
    """The path of a file or folder."""

    optional: bool = field(default=True, kw_only=True)

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, str):
            raise refusal(label, value, "is not a path")
        if "\0" in value:
            raise refusal(label, value, "has a NUL character")
        return value

    def lenient(self, value: object) -> object:
        """Accept ``pathlib`` paths."""
        return os.fspath(value) if isinstance(value, os.PathLike) else value


@dataclass(frozen=True)
class _Tuple(Rule):
    """A tuple; callers may pass any list."""

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, tuple):
            name = label.rpartition(" ")[2]
            raise refusal(label, value, f"is not a list: give one, as in {name}=[...]")
        return self._checked_items(label, value)

    @abstractmethod
    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        """Check the items."""

    def lenient(self, value: object) -> object:
        """Take any list."""
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            return value
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)


@dataclass(frozen=True)
class Layers(_Tuple):
    """Numbers of layers, ascending."""

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        ints = [each for each in value if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
        if len(ints) != len(value) or sorted({*ints}) != ints:
            raise refusal(label, value, "is out of range: expected ascending layer numbers from 0")
        return value


@dataclass(frozen=True)
class LayerRange(_Tuple):
    """The numbers of a first and a last layer, or nothing."""

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        if not value:
            return value
        ints = [each for each in value if isinstance(each, int) and not isinstance(each, bool)]
        if len(ints) != 2 or len(value) != 2 or not 1 <= ints[0] <= ints[1]:
            raise refusal(
                label, value, "is out of range: expected two layer numbers from 1, the first at most the last"
            )
        return value


@dataclass(frozen=True)
class Names(_Tuple):
    """Texts that are not empty."""

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        for each in value:
            if not isinstance(each, str) or not each:
                raise RequestError(f"{label} has {each!r:.80}: expected texts")
        return value

    def lenient(self, value: object) -> object:
        """Take a single text."""
        return super().lenient((value,) if isinstance(value, str) else value)


@dataclass(frozen=True)
class Shares(_Tuple):
    """Numbers from 0, not all of them 0."""

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        numbers = [each for each in value if isinstance(each, int | float) and not isinstance(each, bool)]
        if len(numbers) != len(value) or not all(0 <= each < 1e9 for each in numbers) or (numbers and not any(numbers)):
            raise refusal(label, value, "is out of range: expected numbers from 0, at least one of them above 0")
        return value


@dataclass(frozen=True)
class Adapters(_Tuple):
    """Pairs of a path and a finite number.  ``most``: the largest one, and the smallest if it is negative."""

    most: float = inf

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        for each in value:
            path, scale = each if isinstance(each, tuple) and len(each) == 2 else (None, None)
            if not isinstance(path, str) or not _is_scale(scale):
                raise RequestError(f"{label} has {each!r:.80}: expected paths, or pairs (path, finite number)")
            Float(-self.most, self.most).check(f"{label}: {path!r:.80} with scale", scale)
        return value

    def lenient(self, value: object) -> object:
        """Take a single adapter, and paths without a number, which is then 1."""
        items = super().lenient((value,) if isinstance(value, str | os.PathLike) else value)
        return tuple(map(_pair, items)) if isinstance(items, tuple) else items


@dataclass(frozen=True)
class NamedPaths(_Tuple):
    """Pairs of a name and a path, each name once."""

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        names = []
        for each in value:
            name, path = each if isinstance(each, tuple) and len(each) == 2 else (None, None)
            if not isinstance(name, str) or not name or not isinstance(path, str) or not path:
                raise RequestError(f"{label} has {each!r:.80}: expected NAME=PATH, or pairs (name, path)")
            if name in names:
                raise RequestError(f"{label} has {name!r:.80} twice")
            names.append(name)
        return value

    def lenient(self, value: object) -> object:
        """Take a mapping, texts NAME=PATH, and ``pathlib`` paths."""
        given = [*value.items()] if isinstance(value, Mapping) else [value] if isinstance(value, str) else value
        items = super().lenient(given)
        return tuple(map(_named_path, items)) if isinstance(items, tuple) else items


def _named_path(item: object) -> object:
    if isinstance(item, str) and "=" in item:
        return tuple(item.split("=", 1))
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], os.PathLike):
        return item[0], os.fspath(item[1])
    return item


def _pair(adapter: object) -> object:
    if isinstance(adapter, str | os.PathLike):
        return os.fspath(adapter), 1.0
    if isinstance(adapter, tuple) and adapter and isinstance(adapter[0], os.PathLike):
        return os.fspath(adapter[0]), *adapter[1:]
    return adapter


@dataclass(frozen=True)
class Overrides(_Tuple):
    """Pairs of a regular expression and a device."""

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        for each in value:
            if not isinstance(each, tuple) or len(each) != 2 or not all(isinstance(e, str) and e for e in each):
                raise RequestError(f"{label} has {each!r:.80}: expected a pair (pattern, device)")
            Expression(each[0], label, RequestError)
        return value


@dataclass(frozen=True)
class KeyValues(_Tuple):
    """Pairs of a key and a boolean, number or text."""

    def _checked_items(self, label: str, value: tuple[object, ...]) -> object:
        for each in value:
            key, one = each if isinstance(each, tuple) and len(each) == 2 else (None, None)
            is_value = isinstance(one, bool | int | str) or (isinstance(one, float) and isfinite(one))
            if not isinstance(key, str) or not key or not is_value:
                raise RequestError(f"{label} has {each!r:.80}: expected pairs (key, boolean, number or text)")
        return value

    def lenient(self, value: object) -> object:
        """Take a mapping, and texts as on the command line."""
        if isinstance(value, Mapping):
            return tuple(value.items())
        items = super().lenient((value,) if isinstance(value, str) else value)
        if isinstance(items, tuple) and items and all(isinstance(each, str) for each in items):
            return read_key_values(items)
        return items


@dataclass(frozen=True)
class JsonObject(Rule):
    """An object of JSON, as its text."""

    optional: bool = field(default=True, kw_only=True)

    def _checked(self, label: str, value: object) -> object:
        try:
            found = json.loads(value) if isinstance(value, str) else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise refusal(label, value, "is no JSON object")
        return value

    def lenient(self, value: object) -> object:
        """Take a mapping."""
        try:
            return json.dumps(dict(value)) if isinstance(value, Mapping) else value
        except (TypeError, ValueError):
            return value


def _is_scale(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def read_shares(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas or slashes.  RequestError for others."""
    label = "[engine] tensor_split"
    try:
        found = tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        raise refusal(label, text, "is invalid: expected numbers with commas between") from None
    Shares().check(label, found)
    return found


def read_adapters(values: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Parse ``FILE``, ``FILE:SCALE`` or several separated by commas.  RequestError for an empty name."""
    found = []
    for each in (part for value in values for part in value.split(",")):
        path, colon, scale = each.rpartition(":")
        try:
            found.append((path, float(scale)) if colon else (each, 1.0))
        except ValueError:  # a colon of the path
            found.append((each, 1.0))
        if not found[-1][0]:
            raise RequestError(f"[engine] adapters: {each!r:.80} names no file")
    return tuple(found)


def read_named_paths(values: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``NAME=PATH``, or vLLM's object of JSON with name and path.  RequestError for others."""
    found = []
    for each in values:
        name, _, path = each.partition("=")
        if each.lstrip().startswith("{"):
            try:
                given = json.loads(each)
                name, path = given.pop("name"), given.pop("path")
                left = {key for key, value in given.items() if key != "base_model_name" and value is not None}
            except (ValueError, KeyError, AttributeError):
                raise refusal("[engine] lora_modules", each, "is invalid: expected NAME=PATH") from None
            if left:
                raise RequestError(f"[engine] lora_modules: unsupported field {min(left)!r:.80}")
        found.append((name, path))
    NamedPaths().check("[engine] lora_modules", tuple(found))
    return tuple(found)


def read_overrides(values: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``PATTERN=DEVICE`` or several separated by commas.  RequestError for others."""
    label = "[engine] override_tensor"
    found = []
    for each in (part for value in values for part in value.split(",")):
        pattern, equals, device = each.rpartition("=")
        if not equals:
            raise refusal(label, each, "is invalid: expected PATTERN=DEVICE")
        found.append((pattern, device))
    Overrides().check(label, tuple(found))
    return tuple(found)


def read_key_values(
    values: Iterable[str], label: str = "[engine] override_kv"
) -> tuple[tuple[str, bool | int | float | str], ...]:
    """Parse ``KEY=TYPE:VALUE`` with a type of llama.cpp's: int, float, bool or str.

    RequestError for others; its message begins with ``label``.
    """
    found: list[tuple[str, bool | int | float | str]] = []
    for each in values:
        key, equals, rest = each.partition("=")
        kind, colon, text = rest.partition(":")
        try:
            value: bool | int | float | str
            if kind == "bool":
                value = {"true": True, "false": False}[text]
            elif kind == "str":
                value = text
            else:
                value = {"int": int, "float": float}[kind](text)
        except (KeyError, ValueError):
            raise refusal(label, each, "is invalid: expected KEY=int|float|bool|str:VALUE") from None
        if not equals or not colon:
            raise refusal(label, each, "is invalid: expected KEY=int|float|bool|str:VALUE")
        found.append((key, value))
    KeyValues().check(label, tuple(found))
    return tuple(found)
