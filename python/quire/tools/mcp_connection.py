"""One connection to an MCP server, from its start to its end, with the official client.

Everything here runs on the event loop of ``event_thread``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import LoadError, UnsupportedError

if TYPE_CHECKING:
    import httpx2
    from mcp.client.client import Client
    from mcp.types import Tool as ListedTool

    from .mcp_config import ServerConfig

__all__ = ["Connection"]

START_S = 30.0
_MOST_JSON_BYTES = 16 << 20
_MOST_PAGES = 64
_MOST_TOOLS = 1024
_LAST_LINES = 20
_LINE_CHARS = 500
_log = logging.getLogger("quire.tools")


class Connection:
    """A connected server.  ``ended`` is set when its process or its connection has ended."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.ended = asyncio.Event()
        self.tools: list[ListedTool] = []
        self.client: Client | None = None
        self._leaving = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._errors: _StandardError | None = None
        # A task of its own, because the client's scopes must be left by the task that entered them.
        self._task = asyncio.get_running_loop().create_task(self._live())

    @classmethod
    async def open(cls, config: ServerConfig) -> Connection:
        """Start or reach a server and list its tools.

        LoadError if that fails, UnsupportedError without the package ``mcp``.
        """
        made = cls(config)
        try:
            await asyncio.wait_for(asyncio.shield(made._ready), START_S)
        except BaseException as error:
            await made.close()
            if isinstance(error, asyncio.TimeoutError):
                raise LoadError(made._failure(f"no answer within {START_S:g} s")) from None
            raise
        return made

    async def close(self) -> None:
        """End the connection and the process.  May be called again."""
        self._leaving.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task})
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # read, so that asyncio does not report it

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as opened:
                self.client = await self._connected(opened)
                self.tools = await _listed(self.client)
                self._ready.set_result(None)
                await self._leaving.wait()
        except ImportError as error:
            text = f"[mcp] the package mcp is missing ({error.name}): pip install 'quire-llm[mcp]'"
            self._fail(UnsupportedError(text))
        except asyncio.CancelledError:
            self._fail(LoadError(self._failure("cancelled")))
        except Exception as error:
            self._fail(LoadError(self._failure(_reason(error))))
        finally:
            self.ended.set()

    def _fail(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
        else:
            _log.warning("%s", error)

    def _failure(self, reason: str) -> str:
        text = f"[mcp] server {self.config.name!r}: {reason}"
        last = self._errors.last_line() if self._errors is not None else ""
        return f"{text} (its last message: {last!r:.200})" if last else text

    async def _connected(self, opened: AsyncExitStack) -> Client:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.types import Implementation

        config = self.config
        if config.url is not None:
            http = await opened.enter_async_context(_http_client(dict(config.headers)))
            transport: Any = streamable_http_client(config.url, http_client=http)
        else:
            self._errors = errors = _StandardError(config.name)
            opened.callback(errors.file.close)
            # The package passes on only harmless variables of this process, such as PATH.
            parameters = StdioServerParameters(
                command=config.command or "", args=list(config.args), env=dict(config.env), cwd=config.cwd
            )
            transport = stdio_client(parameters, errors.file)
        # Without callbacks, the package refuses what a server may ask of a client, such as text from the model.
        client = Client(self._watched(transport), client_info=Implementation(name="quire", version="1"), cache=None)
        return await opened.enter_async_context(client)

    @asynccontextmanager
    async def _watched(self, transport: Any) -> AsyncIterator[tuple[Any, Any]]:
        """Pass on the messages of a transport, and notice its end even if nobody waits for a message."""
        import anyio

        async with transport as (read, write):
            sending, receiving = anyio.create_memory_object_stream[Any](0)

            async def forward() -> None:
                async with sending:
                    try:
                        async for message in read:
                            await sending.send(message)
                    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                        pass
                self.ended.set()
                self._leaving.set()

            async with receiving, anyio.create_task_group() as tasks:
                tasks.start_soon(forward)
                try:
                    yield receiving, write
                finally:
                    tasks.cancel_scope.cancel()


async def _listed(client: Client) -> list[ListedTool]:
    """Return the tools of all pages.  LoadError if there are too many."""
    tools: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None and len(tools) <= _MOST_TOOLS:
            return tools
        if len(tools) > _MOST_TOOLS:
            break
    raise LoadError(f"it lists more than {_MOST_TOOLS} tools, or too many pages of them")


def _http_client(headers: dict[str, str]) -> httpx2.AsyncClient:
    """Return a client that follows no redirect and limits the size of answers that are not streams."""
    import httpx2

    async def limit(response: httpx2.Response) -> None:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _limited(response.stream)

    return httpx2.AsyncClient(
        headers=headers, timeout=httpx2.Timeout(30.0, read=300.0), event_hooks={"response": [limit]}
    )


def _limited(stream: Any) -> Any:
    import httpx2

    class Limited(httpx2.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            n_bytes = 0
            async for piece in stream:
                n_bytes += len(piece)
                if n_bytes > _MOST_JSON_BYTES:
                    raise httpx2.DecodingError(f"the answer is larger than {_MOST_JSON_BYTES} bytes")
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return Limited()


def _reason(error: BaseException) -> str:
    """Return what went wrong, in one line; of a group, the first error."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    if isinstance(error, FileNotFoundError):
        return f"command not found: {error.filename}"
    text = " ".join(str(error).split())
    return f"{text or type(error).__name__:.300}"


class _StandardError:
    """The standard error of a process: its last lines are kept, and logged for debugging, never shown to a model."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        reading, writing = os.pipe()
        self.file: TextIO = os.fdopen(writing, "w", encoding="utf-8")
        threading.Thread(target=self._read, args=(reading,), name=f"quire-mcp-{name}", daemon=True).start()

    def last_line(self) -> str:
        """Return the last line."""
        return self._lines[-1] if self._lines else ""

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as file:
            while line := file.readline(_LINE_CHARS):
                if text := line.decode("utf-8", "replace").strip():
                    self._lines.append(text)
                    _log.debug("[mcp] %s: %r", self._name, text)
