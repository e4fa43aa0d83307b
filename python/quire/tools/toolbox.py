"""The tools of a conversation or of a server, and how their calls run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from ..errors import LoadError, RequestError
from ..params.tool_options import ToolOptions
from . import event_thread
from .mcp_server import MCPServer
from .tool import Tool, ToolResult, arguments_of

__all__ = ["ToolSource", "Toolbox"]

ToolSource: TypeAlias = "Callable[..., object] | Tool | MCPServer"
"""A Python function, a tool, or all tools of an MCP server."""
_log = logging.getLogger("quire.tools")


class Toolbox:
    """Tools by the name that the model sees.  ``open_async`` connects its MCP servers, ``close_async`` ends them.

    Servers that were open before stay open.
    """

    def __init__(self, sources: Sequence[ToolSource], options: ToolOptions | None = None) -> None:
        self.options = options or ToolOptions()
        self.servers = [source for source in sources if isinstance(source, MCPServer)]
        self.tools: dict[str, Tool] = {}
        self._opened: list[MCPServer] = []
        for source in sources:
            if isinstance(source, Tool):
                self.add(source)
            elif not isinstance(source, MCPServer):
                from .functions import tool_of_function

                self.add(tool_of_function(source))
        for server in self.servers:
            if server.is_open:
                self._add_tools(server)

    @property
    def definitions(self) -> list[dict[str, object]]:
        """The definitions of all tools in the format of OpenAI's chat API."""
        return [tool.definition for tool in self.tools.values()]

    async def open_async(self, *, tolerant: bool = False) -> None:
        """Connect the servers at the same time.

        ``tolerant``: log a server that cannot be reached and go on without it.  Otherwise its error is raised.
        """
        waiting = [server for server in self.servers if not server.is_open]
        results = await asyncio.gather(*(server.open_async() for server in waiting), return_exceptions=True)
        for server, result in zip(waiting, results, strict=True):
            if isinstance(result, LoadError) and tolerant:
                _log.warning("%s", result)
            elif isinstance(result, BaseException):
                await self.close_async()
                raise result
            else:
                self._opened.append(server)
                self._add_tools(server)

    async def close_async(self) -> None:
        """End the servers that this toolbox connected."""
        opened, self._opened = self._opened, []
        await asyncio.gather(*(server.close_async() for server in opened), return_exceptions=True)

    def __enter__(self) -> Toolbox:
        """Connect, from a program without an event loop."""
        event_thread.run(self.open_async())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        event_thread.run(self.close_async())

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> ToolResult:
        """Run a call and return its result.  Whatever goes wrong in it is a result, too, for the model to read."""
        tool = self.tools.get(name)
        if tool is None:
            return ToolResult(f"there is no tool {name!r:.80}", is_error=True)
        if tool.prepare is not None:
            await tool.prepare()
        limit_s = self.options.timeout_s if tool.timeout_s is None else tool.timeout_s
        try:
            result = await asyncio.wait_for(tool.call(arguments_of(arguments)), limit_s)
        except asyncio.TimeoutError:
            result = ToolResult(f"no result within {limit_s:g} s", is_error=True)
        except Exception as error:
            result = ToolResult(f"{type(error).__name__}: {error}", is_error=True)
        return result.cut(self.options.max_result_chars)

    def _add_tools(self, server: MCPServer) -> None:
        for tool in server.tools:
            try:
                self.add(tool)
            except RequestError as error:  # a foreign name must not keep the other tools from being used
                _log.warning("%s", error)

    def add(self, tool: Tool) -> None:
        """Add a tool, unless its policy hides it.  RequestError if another one has its name."""
        if tool.approval == "never":
            return
        if tool.name in self.tools:
            raise RequestError(f"[tools] two tools are named {tool.name!r:.80}: rename one")
        self.tools[tool.name] = tool
