"""Logits processors of a request: functions, or names of processors that were registered when the engine started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import RequestError
from .rules import Rule, items_of

__all__ = ["MAX_PROCESSORS", "NamedProcessor", "Processors"]

MAX_PROCESSORS = 64


@dataclass(frozen=True)
class NamedProcessor:
    """A registered processor, and the arguments that make it: values of JSON."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Processors(Rule):
    """At most 64 functions, names, or objects ``{"name": ..., "arguments": {...}}``."""

    def _checked(self, label: str, value: object) -> object:
        return tuple(_processor(label, item) for item in items_of(label, value, MAX_PROCESSORS))


def _processor(label: str, item: object) -> object:
    if isinstance(item, str):
        item = NamedProcessor(item)
    elif isinstance(item, Mapping):
        if not {*item} <= {"name", "arguments"} or "name" not in item:
            raise RequestError(f"{label} has {dict(item)!r:.80}: expected the keys name and arguments")
        item = NamedProcessor(item["name"], item.get("arguments", {}))
    if not isinstance(item, NamedProcessor):
        if not callable(item):
            raise RequestError(f"{label} has {item!r:.80}, which is neither callable nor a name")
        return item
    if not isinstance(item.name, str) or not item.name:
        raise RequestError(f"{label} has {item.name!r:.80}, which is not a name")
    if not isinstance(item.arguments, Mapping) or not all(isinstance(key, str) for key in item.arguments):
        raise RequestError(f"{label}: the arguments of {item.name!r:.80} are not an object")
    try:
        json.dumps(dict(item.arguments))
    except (TypeError, ValueError, RecursionError):
        raise RequestError(f"{label}: the arguments of {item.name!r:.80} are not values of JSON") from None
    return item
