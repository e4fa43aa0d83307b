"""The fields of config.json that each transformers class knows and reads.

``ci/make_reference_fields.py`` writes the names and defaults to ``reference_fields.json``.
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
# Fields that quantizers' own libraries write, but that transformers' classes do not have.
_OF_QUANTIZERS = ("adapter", "rotation")
# Values of model_type in models' own code, and those of transformers' class for the same model.
_SPELLINGS = {"exaone4_5_text": "exaone4", "kimi_k2": "deepseek_v3"}
# Rotary parameters that configurations have but no code reads.
_UNREAD_ROTATION = ("mrope_interleaved",)


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return table


@dataclass(frozen=True)
class Reference:
    """The fields of one of transformers' configuration classes.

    ``effect`` has the fields that its code reads, with their defaults; ``none`` those that it has but never reads.
    ``knows_all`` tells that there are no others.  It is False for code outside transformers, which may read more; for a
    model's own code, ``effect`` then has the fields of all transformers classes.
    """

    effect: Mapping[str, object]
    none: frozenset[str]
    sections: Mapping[str, str]  # fields with a nested configuration, and its class
    knows_all: bool

    def knows(self, name: str) -> bool:
        """Return whether transformers uses a field of this name, or may use it."""
        return not self.knows_all or name in self.effect

    def is_without_effect(self, name: str) -> bool:
        """Return whether transformers has the field but never reads it."""
        return name in self.none

    def default(self, name: str) -> object:
        """Return the default of a field; None if it has none or if it is not known."""
        return self.effect.get(name) if self.knows_all else None

    def is_default(self, name: str, value: object) -> bool:
        """Return whether a value is the same as leaving the field out."""
        default = self.default(name)
        return default is not None and type(value) is type(default) and value == default

    def has_effect(self, name: str) -> bool:
        """Return whether the field may change what transformers computes."""
        return name in self.effect

    def section(self, name: str, values: Mapping[str, object]) -> Reference | None:
        """Return the reference for the nested object ``name``; None if every field of it must be read."""
        if name in _ROTATION or self is _rotation():
            return _rotation()
        if name in _QUANTIZATION:
            return _quantization(str(values.get("quant_method")))
        kind = self.sections.get(name) or _by_model_type().get(str(values.get("model_type")))
        return _of_config(kind) if kind is not None else None


@cache
def reference_of(class_name: str) -> Reference:
    """Return the known configuration fields of a class, which need not be one of transformers'."""
    config = _table()["classes"].get(class_name)
    return _of_config(config) if config is not None else _of_all()


def classes_of(model_type: str) -> list[str]:
    """Return those of the classes Quire converts whose configurations have this ``model_type``."""
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
    found = {entry["model_type"]: name for name, entry in _table()["configs"].items() if entry["model_type"]}
    return found | {other: found[name] for other, name in _SPELLINGS.items()}
