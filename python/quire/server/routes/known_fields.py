"""Fields of objects inside bodies, whose shape depends on their kind: what is not known is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..failures import ApiError
from ..listener.request_context import RequestContext

__all__ = ["check_blocks", "check_fields", "functions_of", "leave_out"]


def check_fields(given: Any, known: Collection[str], place: str, context: RequestContext[Any]) -> None:
    """Note a field that is none of ``known``, unless it says nothing; ApiError 400 where the server is strict."""
    if not isinstance(given, dict):
        return
    for name, value in given.items():
        if name not in known and value is not None and value != []:
            at = f"{place}.{name[:64]}"
            if not context.service.settings.refuses_unknown:
                context.ignore(at)
                continue
            raise ApiError(400, "unknown_parameter", f"a field must be one that is known but {at!r} is not", at)


def check_blocks(given: Any, known: Mapping[str, Collection[str]], place: str, context: RequestContext[Any]) -> None:
    """The same for a list of blocks, by their ``type``; what is within a block is looked at, too.

    Blocks of kinds that are not in ``known`` are left to those who read them.
    """
    if not isinstance(given, list):
        return
    for i, block in enumerate(given):
        if isinstance(block, dict) and isinstance(kind := block.get("type"), str) and kind in known:
            check_fields(block, known[kind], f"{place}[{i}]", context)
            check_blocks(block.get("content"), known, f"{place}[{i}].content", context)


def functions_of(tools: list[dict[str, Any]], context: RequestContext[Any]) -> list[dict[str, Any]]:
    """The tools that are functions; those of other types, which a server would run, are noted."""
    kept = []
    for i, tool in enumerate(tools):
        if isinstance(kind := tool.get("type"), str) and kind != "function":
            leave_out(context, f"tools[{i}]")
        else:
            kept.append(tool)
    return kept


def leave_out(context: RequestContext[Any], place: str) -> None:
    """Note what the model is not shown: a tool, an item or a block that it cannot use.  ApiError 400 where strict."""
    if context.service.settings.refuses_unknown:
        raise ApiError(400, "unsupported_parameter", f"{place} is not supported: leave it out", place)
    context.ignore(place)
