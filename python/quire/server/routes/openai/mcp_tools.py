"""Tools of the type ``mcp`` in ``/v1/responses``: which of the operator's tools a request may use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ....tools.tool import Tool
from ....tools.toolbox import Toolbox
from ...failures import ApiError, brief

__all__ = ["McpTools"]

# Fields that would reach or configure a server of the client's choice.
_REFUSED = ("connector_id", "headers", "authorization", "defer_loading")
_KNOWN = {"type", "server_label", "server_url", "server_description", "allowed_tools", "require_approval", *_REFUSED}


class McpTools:
    """The tools of a request by the name that the model sees, with the label of their server.

    The operator's policy and the request's ``require_approval`` both hold: a call runs without asking only if both
    allow that.  ApiError 400 for a server that the operator did not configure.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], toolbox: Toolbox) -> None:
        self.labels: list[str] = []
        self.tools: dict[str, Tool] = {}
        self._asking: set[str] = set()
        self.ignored: list[str] = []
        if toolbox.servers:
            for i, tool in enumerate(tools):
                if tool.get("type") == "mcp":
                    self._add(tool, f"tools[{i}]", toolbox)

    def __bool__(self) -> bool:
        return bool(self.labels)

    def asks(self, name: str) -> bool:
        """Return whether a person has to allow calls of the tool."""
        return name in self._asking

    def of(self, label: str) -> list[Tool]:
        """Return the tools of a server."""
        return [tool for tool in self.tools.values() if tool.server == label]

    def shown(self, label: Any, name: Any) -> Any:
        """Return the name under which the model sees a server's tool, or the tool's own if it sees none."""
        return next((each.name for each in self.tools.values() if (each.server, each.own_name) == (label, name)), name)

    def _add(self, given: Mapping[str, Any], place: str, toolbox: Toolbox) -> None:
        label = given.get("server_label")
        server = next((each for each in toolbox.servers if each.name == label), None)
        if server is None:
            known = ", ".join(each.name for each in toolbox.servers)
            raise _refusal(f"{place}.server_label", f"no MCP server {brief(label)} (available: {known})")
        url = given.get("server_url")
        if url is not None and url != server.config.url:
            text = "only the operator's MCP servers can be used: give server_label alone"
            raise _refusal(f"{place}.server_url", text)
        for name in _REFUSED:
            if given.get(name) not in (None, False):
                raise _refusal(f"{place}.{name}", "the operator configures MCP servers: leave it out")
        if server.name in self.labels:
            raise _refusal(f"{place}.server_label", f"{brief(label)} is given twice")
        self.ignored += [f"{place}.{name:.64}" for name in given if name not in _KNOWN or name == "server_description"]
        own = {tool.own_name: tool for tool in toolbox.tools.values() if tool.server == server.name}
        allowed = _names(given.get("allowed_tools"), own, f"{place}.allowed_tools")
        free = _free_tools(given.get("require_approval"), own, f"{place}.require_approval")
        self.labels.append(server.name)
        for tool in own.values():
            if allowed is None or tool.own_name in allowed:
                self.tools[tool.name] = tool
                if tool.approval != "always" or tool.own_name not in free:
                    self._asking.add(tool.name)


def _refusal(place: str, text: str) -> ApiError:
    return ApiError(400, "invalid_value", f"{place}: {text}", place)


def _names(given: Any, own: Collection[str], place: str) -> set[str] | None:
    """Return the tool names of a filter, which is a list or an object; None for no filter."""
    if isinstance(given, dict):
        if given.get("read_only") is not None:
            raise _refusal(f"{place}.read_only", "a server's own claims are not relied on: give tool_names")
        given = given.get("tool_names")
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise _refusal(place, "expected a list of tool names")
    if unknown := sorted(set(given) - set(own)):
        raise _refusal(place, f"no such tool: {brief(unknown[0])}")
    return set(given)


def _free_tools(given: Any, own: Iterable[str], place: str) -> set[str]:
    """Return the tools for which the request waives approval."""
    own = set(own)
    if given == "never":
        return own
    if given is None or given == "always":
        return set()
    if not isinstance(given, dict) or not set(given) <= {"always", "never"}:
        raise _refusal(place, f"expected always, never or an object with lists of tools, got {brief(given)}")
    never = _names(given.get("never"), own, f"{place}.never") or set()
    return never - (_names(given.get("always"), own, f"{place}.always") or set())
