"""Sampling parameters in messages: the fields that are not the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from ...params.sampling import PARAMETERS, SamplingParams
from ...params.structured import StructuredOutputsParams

__all__ = ["params_of", "set_fields"]

T = TypeVar("T")
_USUAL = SamplingParams()
_NAMES = tuple(name for name in PARAMETERS if name != "logits_processors")


def set_fields(params: SamplingParams) -> dict[str, Any]:
    """Return the fields that are not the defaults, as a message has them."""
    given = {name: value for name in _NAMES if (value := getattr(params, name)) != getattr(_USUAL, name)}
    if params.structured_outputs is not None:
        form = params.structured_outputs
        given["structured_outputs"] = {entry.name: getattr(form, entry.name) for entry in fields(form)}
    return given


def params_of(given: Mapping[str, Any]) -> SamplingParams:
    """Return the inverse of ``set_fields``.  Nothing is checked: the listener did that when it made the message."""
    values = {**_USUAL.__dict__, **_immutable(given)}
    if values["structured_outputs"] is not None:
        values["structured_outputs"] = _made(StructuredOutputsParams, _immutable(values["structured_outputs"]))
    return _made(SamplingParams, values)


def _immutable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Messages have lists where the parameters have tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Make an object of checked values."""
    made = object.__new__(kind)
    made.__dict__.update(values)
    return made
