"""Sources of the values of GGUF keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import UnsupportedError
from ..reading.fields import Fields

Value = int | float | bool | str | Sequence[int] | Sequence[bool] | Sequence[float] | Sequence[str]
Reading = Callable[[Fields], "Value | None"]


@dataclass(frozen=True)
class Key:
    """A GGUF type (``u32``, ``f32``, ``bool[]``, ...) and a function that reads the value; None omits the key.

    ``field``: the field of config.json whose value this is; empty if the value is computed.
    """

    kind: str
    read: Reading
    field: str = ""


class _Required:
    """Marks a field without a default."""


REQUIRED = _Required()
Default = int | float | bool | Callable[[Fields], int] | None | _Required


def _first(config: Fields, names: Sequence[str]) -> str:
    """Return the first of several names that the configuration has."""
    return next((name for name in names if config.has(name)), names[0])


def _default(config: Fields, default: Default) -> int | float | bool | None:
    assert not isinstance(default, _Required)
    return default(config) if callable(default) else default


def u32(*names: str, default: Default = REQUIRED, low: int = 0) -> Key:
    """Read an integer of at least ``low`` from the first of ``names`` that is present.

    ``default`` is transformers', or a function of the configuration; None omits the key.
    """

    def read(config: Fields) -> Value | None:
        name = _first(config, names)
        if config.has(name) or isinstance(default, _Required):
            return config.integer(name, low=low)
        return _default(config, default)

    return Key("u32", read, names[0])


def f32(*names: str, default: Default = REQUIRED) -> Key:
    """Read a number; see ``u32``."""

    def read(config: Fields) -> Value | None:
        name = _first(config, names)
        if config.has(name) or isinstance(default, _Required):
            return config.number(name)
        return _default(config, default)

    return Key("f32", read, names[0])


def factor(name: str, *, default: float) -> Key:
    """Read a multiplier; 0 is rejected, because in files it means "not set"."""

    def read(config: Fields) -> Value | None:
        value = config.number(name, default)
        if value == 0:
            raise UnsupportedError(f"[convert] unsupported '{name}': 0")
        return value

    return Key("f32", read, name)


def window(default: int | None, *, none: int | None = None, field: str = "sliding_window") -> Key:
    """Read the length of a sliding window.  0 is rejected: nothing would be visible, and in files it means none.

    ``none`` is the file's value for full attention, which null means, or absence if there is no ``default``.
    """

    def read(config: Fields) -> Value | None:
        if config.is_null(field) or (default is None and not config.has(field)):
            return none
        return config.integer(field, default, low=1)

    return Key("u32", read)


def cap(field: str, default: float | None, *, none: float | None = 0.0) -> Key:
    """Read a soft cap of logits or scores; 0, a divisor, is rejected.

    ``none`` is the file's value for no cap, which null means, or absence if there is no ``default``.
    """

    def read(config: Fields) -> Value | None:
        if config.is_null(field) or (default is None and not config.has(field)):
            return none
        if (value := config.number(field, default)) <= 0:
            raise UnsupportedError(f"[convert] '{field}' {value} is out of range: expected more than 0")
        return value

    return Key("f32", read)


def flag(*names: str, default: Default = REQUIRED) -> Key:
    """Read a boolean; see ``u32``."""

    def read(config: Fields) -> Value | None:
        name = _first(config, names)
        if config.has(name) or isinstance(default, _Required):
            return config.flag(name)
        value = _default(config, default)
        return config.flag(name, value) if isinstance(value, bool) else value

    return Key("bool", read, names[0])


def computed(kind: str, read: Reading) -> Key:
    """Compute a value from the configuration; None omits the key."""
    return Key(kind, read)
