"""The names that a model sees for the functions of ``/v1/responses``, including those in namespaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

__all__ = ["ToolNames", "functions_in"]


def functions_in(tools: Sequence[dict[str, Any]]) -> list[tuple[str, str | None, dict[str, Any]]]:
    """List the tools, including those in namespaces, each with its place and namespace."""
    found: list[tuple[str, str | None, dict[str, Any]]] = []
    for i, tool in enumerate(tools):
        inner = tool.get("tools")
        if tool.get("type") == "namespace" and isinstance(inner, list) and isinstance(tool.get("name"), str):
            found += [
                (f"tools[{i}].tools[{j}]", tool["name"], each) for j, each in enumerate(inner) if isinstance(each, dict)
            ]
        else:
            found.append((f"tools[{i}]", None, tool))
    return found


class ToolNames:
    """Names functions in namespaces by their own name or, if that is not unique, ``NAMESPACE__NAME``."""

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        named = [
            (space, str(tool["name"])) for _, space, tool in functions_in(tools) if isinstance(tool.get("name"), str)
        ]
        counts = Counter(name for _, name in named)
        self._own: dict[str, tuple[str, str]] = {}
        self._shown: dict[tuple[str, str], str] = {}
        for space, name in named:
            if space is not None:
                shown = name if counts[name] == 1 else f"{space}__{name}"
                self._own[shown], self._shown[space, name] = (space, name), shown

    def shown(self, space: Any, name: Any) -> Any:
        """Return the name that a model sees."""
        if not isinstance(space, str) or not isinstance(name, str):
            return name
        return self._shown.get((space, name), f"{space}__{name}")

    def fields(self, shown: str) -> dict[str, str]:
        """Return the name, and the namespace if there is one, in the format of clients."""
        if shown not in self._own:
            return {"name": shown}
        space, name = self._own[shown]
        return {"name": name, "namespace": space}
