"""Where the value of a GGUF key comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import UnsupportedError
from ..reading.fields import Fields

Value = int | float | bool | str | Sequence[int] | Sequence[bool] | Sequence[float] | Sequence[str]
Reading = Callable[[Fields], "Value | None"]


@dataclass(frozen=True)
class Key:
    """A GGUF type (``u32``, ``f32``, ``bool[]``, ...) and how the value is read; None leaves the key out.

    ``field``: the field of config.json that such a value stands for as it is; empty where a function makes it.
    """

    kind: str
    read: Reading
    field: str = ""


class _Required:
    """Stands for the default of a field that must be there."""


REQUIRED = _Required()
Default = int | float | bool | Callable[[Fields], int] | None | _Required


def _first(config: Fields, names: Sequence[str]) -> str:
    """Of several names of one field, the one that the configuration has."""
    return next((name for name in names if config.has(name)), names[0])


def _default(config: Fields, default: Default) -> int | float | bool | None:
    assert not isinstance(default, _Required)
    return default(config) if callable(default) else default


def u32(*names: str, default: Default = REQUIRED, low: int = 0) -> Key:
    """A whole number of at least ``low``, by the first of ``names`` that is there.

    ``default`` is transformers', or a function of the configuration; None leaves the key out.
    """

    def read(config: Fields) -> Value | None:
        name = _first(config, names)
        if config.has(name) or isinstance(default, _Required):
            return config.integer(name, low=low)
        return _default(config, default)

    return Key("u32", read, names[0])


def f32(*names: str, default: Default = REQUIRED) -> Key:
    """A number; see ``u32``."""

    def read(config: Fields) -> Value | None:
        name = _first(config, names)
        if config.has(name) or isinstance(default, _Required):
            return config.number(name)
        return _default(config, default)

    return Key("f32", read, names[0])


def factor(name: str, *, default: float) -> Key:
    """A number that is multiplied by; 0 is refused, as in files it says nothing."""

    def read(config: Fields) -> Value | None:
        value = config.number(name, default)
        if value == 0:
            raise UnsupportedError(f"[convert] '{name}' must not be 0 but is")
        return value

    return Key("f32", read, name)


def window(default: int | None, *, none: int | None = None, field: str = "sliding_window") -> Key:
    """How many tokens a layer sees.  0 is refused: nothing is seen then, and files say no window by it.

    ``none`` is the value of files for all of the past, which null says, and absence where there is no ``default``.
    """

    def read(config: Fields) -> Value | None:
        if config.is_null(field) or (default is None and not config.has(field)):
            return none
        return config.integer(field, default, low=1)

    return Key("u32", read)


def cap(field: str, default: float | None, *, none: float | None = 0.0) -> Key:
    """What logits or scores are kept within; 0, by which would be divided, is refused.

    ``none`` is the value of files where there is no cap, which null says, and absence where there is no ``default``.
    """

    def read(config: Fields) -> Value | None:
        if config.is_null(field) or (default is None and not config.has(field)):
            return none
        if (value := config.number(field, default)) <= 0:
            raise UnsupportedError(f"[convert] '{field}' must be above 0 but is {value}")
        return value

    return Key("f32", read)


def flag(*names: str, default: Default = REQUIRED) -> Key:
    """A boolean; see ``u32``."""

    def read(config: Fields) -> Value | None:
        name = _first(config, names)
        if config.has(name) or isinstance(default, _Required):
            return config.flag(name)
        value = _default(config, default)
        return config.flag(name, value) if isinstance(value, bool) else value

    return Key("bool", read, names[0])


def computed(kind: str, read: Reading) -> Key:
    """A value that a function makes of the configuration; None leaves the key out."""
    return Key(kind, read)
