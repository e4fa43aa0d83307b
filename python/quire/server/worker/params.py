"""Sampling parameters in messages: the fields that are not the defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...params.sampling import SamplingParams
from ...params.structured import StructuredOutputsParams

__all__ = ["params_of", "set_fields"]

_USUAL = SamplingParams()
_NAMES = tuple(entry.name for entry in fields(SamplingParams) if entry.name != "logits_processors")


def set_fields(params: SamplingParams) -> dict[str, Any]:
    """The fields that are not the defaults, as a message has them."""
    given = {name: value for name in _NAMES if (value := getattr(params, name)) != getattr(_USUAL, name)}
    if params.structured_outputs is not None:
        form = params.structured_outputs
        given["structured_outputs"] = {entry.name: getattr(form, entry.name) for entry in fields(form)}
    return given


def params_of(given: dict[str, Any]) -> SamplingParams:
    """The inverse of ``set_fields``."""
    if "structured_outputs" in given:
        given = {**given, "structured_outputs": StructuredOutputsParams(**given["structured_outputs"])}
    return SamplingParams(**given)
