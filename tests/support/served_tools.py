"""A server with tools of an MCP server, without a network, a process or a model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import httpx
from fake_engine import FakeEngine
from quire.server.app import build_app
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings
from quire.tools import Tool, ToolResult
from quire.tools.mcp_server import MCPServer

HOME = "http://localhost:8080"
Send = Callable[..., Awaitable[httpx.Response]]
_POLICIES: dict[str, Literal["ask", "always", "never"]] = {"ask": "ask", "free": "always", "no": "never"}


def served(
    script: Callable[[Send, list[Any]], Awaitable[None]], engine: FakeEngine | None = None, **options: Any
) -> None:
    """Run a script of requests against one server with the tools of ``tool_service``, whose calls are recorded."""
    calls: list[Any] = []

    async def run() -> None:
        transport = httpx.ASGITransport(build_app(tool_service(calls, engine, **options)))
        async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
            await script(client.request, calls)

    asyncio.run(run())


def tool_service(calls: list[Any], engine: FakeEngine | None = None, **options: Any) -> Service:
    """Return a service with three tools of the server "s".

    They return the argument ``text``, and fail if it is "fail".
    """

    async def echo(arguments: dict[str, Any]) -> ToolResult:
        calls.append(arguments)
        text = str(arguments.get("text", ""))
        return ToolResult(text, is_error=text == "fail")

    service = Service(Settings(access_log=False, **options), Library.of("fake", lambda: engine or FakeEngine()))
    box = service.toolbox
    box.servers.append(MCPServer("s", url="http://s.example/mcp"))
    for name, approval in _POLICIES.items():
        box.add(Tool(name=f"s__{name}", own_name=name, parameters={}, call=echo, server="s", approval=approval))
    return service
