"""The options of running tools, declared once, for Python, the commands and the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from .engine_rules import PathText
from .parameter import Declaration, declared
from .rules import Float, Int

__all__ = ["TOOL_OPTIONS", "ToolOption", "ToolOptions"]


@dataclass(frozen=True, kw_only=True)
class ToolOption(Declaration):
    """An option of running tools."""

    @property
    def help(self) -> str:
        """Its description on the command line."""
        return f"{self.doc} [{self.none}]." if self.none else f"{self.doc}."


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """The options of running tools.  Raises ``RequestError`` naming the one that is out of range."""

    mcp: str | None = declared(None, ToolOption(
        rule=PathText(optional=True), flags="--mcp", metavar="FILE", none="none",
        doc="Offer the model the tools of the MCP servers in FILE, which has Claude Desktop's format (quire-llm[mcp])",
    ))
    max_rounds: int = declared(8, ToolOption(
        rule=Int(1, 100), flags="--tool-rounds", metavar="N", none="8",
        doc="Most rounds of tool calls in one turn; then the model must answer",
    ))
    timeout_s: float = declared(60.0, ToolOption(
        rule=Float(0.0, 86_400.0, open_below=True), flags="--tool-timeout", metavar="S", none="60",
        doc="Time limit of a tool call",
    ))
    max_result_chars: int = declared(32_768, ToolOption(
        rule=Int(64), flags="--tool-result-chars", metavar="N", none="32768",
        doc="Cut a tool's result after N characters",
    ))
    # fmt: on

    def __post_init__(self) -> None:
        for name, option in TOOL_OPTIONS.items():
            option.rule.check(f"[tools] {name}", self.__dict__[name])


TOOL_OPTIONS: Mapping[str, ToolOption] = MappingProxyType(
    {entry.name: entry.metadata["parameter"] for entry in fields(ToolOptions)}
)
"""All options by name, in the order of ``ToolOptions``."""
