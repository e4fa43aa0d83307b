"""A server of the Model Context Protocol, and its tools."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, QuireError
from . import event_thread
from .mcp_config import ServerConfig, read_servers
from .mcp_connection import Connection
from .tool import Approval, Tool, ToolResult

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

__all__ = ["MCPServer"]

_MOST_STARTS = 4
_STARTS_WINDOW_S = 600.0
_MOST_NAME = 64
_MOST_DESCRIPTION = 8192
_MOST_SCHEMA_BYTES = 64 << 10
_MOST_AT_ONCE = 16
# Codes with which servers over HTTP answer requests of a session that they do not know any more.
_LOST_SESSION = (-32000, -32001, -32600)
_log = logging.getLogger("quire.tools")
_open: weakref.WeakSet[MCPServer] = weakref.WeakSet()


class MCPServer:
    """An MCP server: a command that is started, or an address.

    Used in a ``with`` block, or after ``open()``, it stays connected until it is closed; otherwise ``LLM.run`` connects
    for one call.  A server that ends is started again when a call needs it, at most three times in ten minutes.
    Its tools are those that it listed when it was opened: later changes have no effect.  Thread-safe.

    Args:
        name: Goes before the names of its tools: ``NAME__TOOL``.
        command: The program, with ``args``, ``env`` (added to a few harmless variables) and ``cwd``.
        url: The address of a server that speaks streamable HTTP, with ``headers``.
        approval: ``"ask"``, ``"always"`` or ``"never"``, for all tools or by their names, where ``"*"`` is the others.
        timeout_s: Time limit of a call; None for the one of ``LLM.run`` or the server.
    """

    def __init__(
        self,
        name: str,
        command: str | None = None,
        args: Iterable[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        approval: Approval | Mapping[str, Approval] = "ask",
        timeout_s: float | None = None,
    ) -> None:
        policies: Mapping[str, Approval] = {"*": approval} if isinstance(approval, str) else approval
        self._set(ServerConfig(
            name=name, command=command, args=tuple(args), env=env or {}, cwd=cwd, url=url, headers=headers or {},
            approval=policies, timeout_s=timeout_s,
        ))  # fmt: skip

    @classmethod
    def of(cls, config: ServerConfig) -> MCPServer:
        """Return the server that a configuration describes."""
        made = cls.__new__(cls)
        made._set(config)
        return made

    @classmethod
    def load(cls, path: str | Path) -> list[MCPServer]:
        """Return the servers of a file in Claude Desktop's format.  RequestError names what is invalid in it."""
        return [cls.of(config) for config in read_servers(Path(path))]

    def _set(self, config: ServerConfig) -> None:
        self.config = config
        self._connection: Connection | None = None
        self._starts: deque[float] = deque(maxlen=_MOST_STARTS)
        self._lock: asyncio.Lock | None = None
        self._at_once: asyncio.Semaphore | None = None
        self._tools: list[Tool] = []
        self._stopped = True
        self.error: str | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.name

    @property
    def is_open(self) -> bool:
        """Return whether it was opened and not closed; it may have ended by itself meanwhile."""
        return not self._stopped

    @property
    def tools(self) -> list[Tool]:
        """Its tools, once it was opened."""
        return self._tools

    def open(self) -> MCPServer:
        """Connect.  LoadError if that fails, UnsupportedError without the package ``mcp``."""
        event_thread.run(self._opened())
        return self

    async def open_async(self) -> MCPServer:
        """Connect, from any event loop."""
        await asyncio.wrap_future(event_thread.submit(self._opened()))
        return self

    def close(self) -> None:
        """End the connection, and the process if there is one.  May be called again."""
        event_thread.run(self._closed())

    async def close_async(self) -> None:
        """End the connection, from any event loop."""
        await asyncio.wrap_future(event_thread.submit(self._closed()))

    def __enter__(self) -> MCPServer:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> MCPServer:
        return await self.open_async()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close_async()

    async def _opened(self) -> None:
        self._stopped = False
        _open.add(self)
        try:
            connection = await self._alive()
        except BaseException:
            self._stopped = True
            raise
        self._tools = [self._tool(listed) for listed in connection.tools if self._is_small(listed)]

    async def _closed(self) -> None:
        self._stopped = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _alive(self) -> Connection:
        """Return a connection that has not ended, starting the server if necessary."""
        if self._lock is None:
            self._lock, self._at_once = asyncio.Lock(), asyncio.Semaphore(_MOST_AT_ONCE)
        async with self._lock:
            if self._stopped:
                raise LoadError(f"[mcp] server {self.name!r} is closed")
            if self._connection is not None and not self._connection.ended.is_set():
                return self._connection
            if self._connection is not None:
                await self._connection.close()
                _log.warning("[mcp] server %r ended; starting it again", self.name)
            now = time.monotonic()
            if len(self._starts) == _MOST_STARTS and now - self._starts[0] < _STARTS_WINDOW_S:
                raise LoadError(
                    f"[mcp] server {self.name!r} ended {_MOST_STARTS} times in {_STARTS_WINDOW_S / 60:g} minutes: "
                    "not starting it again"
                )
            self._starts.append(now)
            try:
                self._connection = await Connection.open(self.config)
            except QuireError as error:
                self.error = str(error)
                raise
            self.error = None
            return self._connection

    def _is_small(self, listed: ListedTool) -> bool:
        """Return whether a definition has a sensible size; log it otherwise."""
        n_bytes = len(json.dumps(listed.input_schema))
        if n_bytes > _MOST_SCHEMA_BYTES:
            _log.warning(
                "[mcp] leaving out tool %.80r of server %r: its schema has %d bytes", listed.name, self.name, n_bytes
            )
        return n_bytes <= _MOST_SCHEMA_BYTES

    def _tool(self, listed: ListedTool) -> Tool:
        name = tool_name(self.name, listed.name)
        hints = None if listed.annotations is None else listed.annotations.model_dump(exclude_none=True, by_alias=True)
        return Tool(
            name=name,
            own_name=listed.name,
            description=(listed.description or "")[:_MOST_DESCRIPTION],
            parameters=listed.input_schema,
            approval=self.config.approval_of(listed.name),
            call=partial(self._call, listed.name),
            prepare=self._prepare,
            server=self.name,
            hints=hints,
            timeout_s=self.config.timeout_s,
        )

    async def _prepare(self) -> None:
        """Start the server if it has ended.  If that fails, the call will say so."""

        async def start() -> None:
            with suppress(QuireError):
                await self._alive()

        await asyncio.wrap_future(event_thread.submit(start()))

    async def _call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        future: Future[ToolResult] = event_thread.submit(self._called(tool, arguments))
        return await asyncio.wrap_future(future)

    async def _called(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a call.  A call that was under way when the server ended is not tried again: it may have had effects."""
        try:
            connection = await self._alive()
        except QuireError as error:
            _log.warning("%s", error)
            return ToolResult(f"the server {self.name!r} of this tool is not running", is_error=True)
        assert self._at_once is not None
        assert connection.client is not None
        from mcp import MCPError

        async with self._at_once:
            try:
                return result_of(await connection.client.call_tool(tool, arguments))
            except MCPError as error:
                if connection.ended.is_set():
                    return ToolResult("the server of this tool ended during the call", is_error=True)
                if self.config.url is not None and error.code in _LOST_SESSION:
                    await connection.close()  # so that the next call connects again
                return ToolResult(f"error: {error.message}", is_error=True)


def tool_name(server: str, tool: str) -> str:
    """Return the name that a model sees: ``SERVER__TOOL``, of letters, digits, ``_`` and ``-``, at most 64."""
    name = "__".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in (server, tool))
    if len(name) <= _MOST_NAME:
        return name
    return f"{name[: _MOST_NAME - 9]}_{hashlib.sha256(f'{server}/{tool}'.encode()).hexdigest()[:8]}"


def result_of(given: CallToolResult) -> ToolResult:
    """Return the text of a result.  Of parts that are not text, only their kind and size are shown."""
    parts = []
    for part in given.content:
        if part.type == "text":
            parts.append(part.text)
        elif part.type == "resource":
            text = getattr(part.resource, "text", None)
            parts.append(text if text is not None else f"[{part.resource.mime_type or 'data'}: not shown]")
        elif part.type == "resource_link":
            parts.append(f"[{part.name}: {part.uri}]")
        else:
            parts.append(f"[{part.mime_type}, {len(part.data) * 3 // 4} bytes: not shown]")
    if not parts and given.structured_content is not None:
        parts.append(json.dumps(given.structured_content, ensure_ascii=False))
    return ToolResult("\n".join(parts), is_error=given.is_error)


async def _close_all() -> None:
    await asyncio.gather(*(server._closed() for server in list(_open)), return_exceptions=True)


event_thread.run_at_exit(_close_all)
