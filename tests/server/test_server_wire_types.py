"""Annotations of wire types contain no strings, on every Python version.

A quoted alias is a string inside another type (``list[JsonObject]``).  Python 3.11 resolves such strings when it
evaluates a class's annotations; Python 3.10 does not, and msgspec then cannot create a decoder.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator

import msgspec
import pytest
import quire.server


def _descendants(cls: type) -> Iterator[type]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _descendants(derived)


def _wire_types() -> list[type]:
    for module in pkgutil.walk_packages(quire.server.__path__, "quire.server."):
        importlib.import_module(module.name)
    found = {cls for cls in _descendants(msgspec.Struct) if cls.__module__.startswith("quire.")}
    return sorted(found, key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


WIRE_TYPES = _wire_types()


def _strings(annotation: object) -> list[str]:
    """Return the names that a type contains as strings."""
    if isinstance(annotation, str):
        return [annotation]
    if isinstance(annotation, typing.ForwardRef):
        return [annotation.__forward_arg__]
    if typing.get_origin(annotation) is typing.Literal:
        return []
    parts = annotation if isinstance(annotation, list) else typing.get_args(annotation)
    return [name for part in parts for name in _strings(part)]


def test_a_name_in_a_type_is_found() -> None:
    assert _strings(list["dict[str, int]"]) == ["dict[str, int]"]
    assert _strings(typing.Annotated[typing.Optional["pkgutil"], 1]) == ["pkgutil"]
    assert _strings(dict[str, typing.Literal["text"] | None]) == []


def test_all_wire_types_are_checked() -> None:
    names = {cls.__name__ for cls in WIRE_TYPES}
    assert {"Chat", "Delta", "ModelInfo", "Body", "TimedBody"} <= names
    assert len(WIRE_TYPES) > 30


@pytest.mark.parametrize("cls", WIRE_TYPES, ids=lambda cls: f"{cls.__module__.removeprefix('quire.')}.{cls.__name__}")
def test_annotations_of_a_wire_type_are_types(cls: type) -> None:
    # Only the class's own annotations, because msgspec evaluates those of base classes separately.
    annotations = inspect.get_annotations(cls, eval_str=True)
    assert {name: found for name, given in annotations.items() if (found := _strings(given))} == {}
    msgspec.json.Decoder(cls)
