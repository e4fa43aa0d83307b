"""Tools that run: Python functions and the tools of MCP servers, and the loop that feeds their results to a model."""

from typing import TYPE_CHECKING

from ..runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from .mcp_server import MCPServer
    from .tool import Tool, ToolResult

__all__ = ["MCPServer", "Tool", "ToolResult"]

_MODULES = {"MCPServer": "mcp_server", "Tool": "tool", "ToolResult": "tool"}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _MODULES)
