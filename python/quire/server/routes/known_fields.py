"""Check nested objects, whose fields depend on their kind, for unknown fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..failures import ApiError
from ..listener.request_context import RequestContext

__all__ = ["check_blocks", "check_fields", "functions_of", "leave_out"]


def check_fields(given: Any, known: Collection[str], place: str, context: RequestContext[Any]) -> None:
    """Note fields that are not in ``known`` and not empty as ignored; ApiError 400 if the server is strict."""
    if not isinstance(given, dict):
        return
    for name, value in given.items():
        if name not in known and value is not None and value != []:
            at = f"{place}.{name[:64]}"
            if not context.service.settings.refuses_unknown:
                context.ignore(at)
                continue
            raise ApiError(400, "unknown_parameter", f"unknown field {at!r}", at)


def check_blocks(given: Any, known: Mapping[str, Collection[str]], place: str, context: RequestContext[Any]) -> None:
    """Check a list of blocks by their ``type``, including the blocks inside them.

    Blocks of kinds that are not in ``known`` are left to the code that reads them.
    """
    if not isinstance(given, list):
        return
    for i, block in enumerate(given):
        if isinstance(block, dict) and isinstance(kind := block.get("type"), str) and kind in known:
            check_fields(block, known[kind], f"{place}[{i}]", context)
            check_blocks(block.get("content"), known, f"{place}[{i}].content", context)


def functions_of(tools: list[dict[str, Any]], context: RequestContext[Any]) -> list[dict[str, Any]]:
    """Return the tools that are functions; other types, which a server would run, are noted as ignored."""
    kept = []
    for i, tool in enumerate(tools):
        if isinstance(kind := tool.get("type"), str) and kind != "function":
            leave_out(context, f"tools[{i}]")
        else:
            kept.append(tool)
    return kept


def leave_out(context: RequestContext[Any], place: str) -> None:
    """Note a tool, item or block that the model will not see.  ApiError 400 if the server is strict."""
    if context.service.settings.refuses_unknown:
        raise ApiError(400, "unsupported_parameter", f"{place} is not supported: leave it out", place)
    context.ignore(place)
