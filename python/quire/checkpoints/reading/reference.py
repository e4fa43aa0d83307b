"""Which fields of config.json transformers knows, and which of those it reads, by class.

``reference_fields.json`` holds the facts, written by ``ci/make_reference_fields.py``: names and defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Reference", "classes_of", "reference_of"]

_FILE = Path(__file__).with_name("reference_fields.json")
_ROTATION = ("rope_parameters", "rope_scaling")
_QUANTIZATION = ("quantization_config", "compression_config")
# Fields that quantizers' own libraries write and transformers' classes do not name.
_OF_QUANTIZERS = ("adapter", "rotation")
# Parameters of rotation that configurations have and no code reads.
_UNREAD_ROTATION = ("mrope_interleaved",)


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return table


@dataclass(frozen=True)
class Reference:
    """The fields of one of transformers' configurations.

    ``effect``: those that its code reads, with their defaults; ``none``: those that it has and never reads.
    ``knows_all``: whether other fields are unknown to it.  Otherwise other code than transformers' may know more, and
    ``effect`` has what is known of it: for a model's own code, the fields of all of transformers' classes.
    """

    effect: Mapping[str, object]
    none: frozenset[str]
    sections: Mapping[str, str]  # fields that hold a configuration, with its class
    knows_all: bool

    def knows(self, name: str) -> bool:
        """Return whether transformers uses a field of this name, or may use it."""
        return not self.knows_all or name in self.effect

    def is_without_effect(self, name: str) -> bool:
        """Return whether transformers has the field but no code reads it."""
        return name in self.none

    def default(self, name: str) -> object:
        """The default of a field; None if it has none or it is not known."""
        return self.effect.get(name) if self.knows_all else None

    def is_default(self, name: str, value: object) -> bool:
        """Return whether a value is the same as leaving the field out."""
        default = self.default(name)
        return default is not None and type(value) is type(default) and value == default

    def has_effect(self, name: str) -> bool:
        """Return whether the field may change what transformers computes."""
        return name in self.effect

    def section(self, name: str, values: Mapping[str, object]) -> Reference | None:
        """The fields of an object below ``name``; None where all of them are to be known."""
        if name in _ROTATION or self is _rotation():
            return _rotation()
        if name in _QUANTIZATION:
            return _quantization(str(values.get("quant_method")))
        kind = self.sections.get(name) or _by_model_type().get(str(values.get("model_type")))
        return _of_config(kind) if kind is not None else None


@cache
def reference_of(class_name: str) -> Reference:
    """The known configuration fields of a class, whether or not it is one of transformers' own."""
    config = _table()["classes"].get(class_name)
    return _of_config(config) if config is not None else _of_all()


def classes_of(model_type: str) -> list[str]:
    """Return the classes whose configurations have a ``model_type``, of those that Quire converts."""
    config = _by_model_type().get(model_type)
    return [] if config is None else [name for name, found in _table()["classes"].items() if found == config]


@cache
def _of_config(name: str) -> Reference:
    entry = _table()["configs"][name]
    return Reference(entry["effect"], frozenset(entry["none"]), entry["sections"], knows_all=True)


@cache
def _of_all() -> Reference:
    effect = {name: None for entry in _table()["configs"].values() for name in entry["effect"]}
    return Reference(effect, frozenset(), {}, knows_all=False)


@cache
def _rotation() -> Reference:
    names = _table()["names"]["rotation"]
    return Reference(dict.fromkeys(names), frozenset(_UNREAD_ROTATION), {}, knows_all=True)


@cache
def _quantization(method: str) -> Reference | None:
    names = _table()["quantizations"].get(method)
    return None if names is None else Reference(dict.fromkeys([*names, *_OF_QUANTIZERS]), frozenset(), {}, False)


@cache
def _by_model_type() -> Mapping[str, str]:
    return {entry["model_type"]: name for name, entry in _table()["configs"].items() if entry["model_type"]}
