"""Sampling parameters in messages: only the fields that differ from the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from ...params.processors import NamedProcessor
from ...params.sampling import PARAMETERS, SamplingParams
from ...params.structured import StructuredOutputsParams

__all__ = ["params_of", "set_fields"]

T = TypeVar("T")
_USUAL = SamplingParams()
_NAMES = tuple(name for name in PARAMETERS if name != "logits_processors")


def set_fields(params: SamplingParams) -> dict[str, Any]:
    """Return the fields that differ from the defaults, in the format of messages."""
    given = {name: value for name in _NAMES if (value := getattr(params, name)) != getattr(_USUAL, name)}
    if params.logits_processors:
        given["logits_processors"] = [(each.name, dict(each.arguments)) for each in named(params)]
    if params.structured_outputs is not None:
        form = params.structured_outputs
        given["structured_outputs"] = {entry.name: getattr(form, entry.name) for entry in fields(form)}
    return given


def named(params: SamplingParams) -> list[NamedProcessor]:
    """Return the logits processors that are chosen by name; bodies have no others."""
    return [each for each in params.logits_processors if isinstance(each, NamedProcessor)]


def params_of(given: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters for fields from ``set_fields``.  The listener has validated them already."""
    values = {**_USUAL.__dict__, **_immutable(given)}
    if values["structured_outputs"] is not None:
        values["structured_outputs"] = _made(StructuredOutputsParams, _immutable(values["structured_outputs"]))
    values["logits_processors"] = tuple(NamedProcessor(*each) for each in values["logits_processors"])
    return _made(SamplingParams, values)


def _immutable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the lists of a message into tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Create an object from validated values, without checks."""
    made = object.__new__(kind)
    made.__dict__.update(values)
    return made
