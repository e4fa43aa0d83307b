"""MCP servers: their file, their processes, and what their answers may do.

Oracles: the specification's messages, written by a server of a few lines, and what that server writes down.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_mcp_server import http_server
from quire.errors import LoadError, RequestError
from quire.params.tool_options import ToolOptions
from quire.tools import MCPServer
from quire.tools.mcp_config import read_servers
from quire.tools.mcp_server import tool_name
from quire.tools.toolbox import Toolbox

SERVER = Path(__file__).resolve().parent.parent / "support" / "fake_mcp_server.py"


def _written(folder: Path, servers: Any) -> Path:
    path = folder / "servers.json"
    path.write_text(json.dumps({"globalShortcut": "", "mcpServers": servers}))
    return path


def test_a_file_is_read_as_claude_desktop_and_other_programs_write_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "quire.tools")
    first, second = read_servers(
        _written(
            tmp_path,
            {
                "a": {
                    "command": "c",
                    "args": ["-y"],
                    "env": {"K": "v"},
                    "autoApprove": ["x"],
                    "approval": {"y": "never"},
                },
                "off": {"command": "c", "disabled": True},
                "b": {
                    "type": "http",
                    "url": "https://e.example/mcp",
                    "headers": {"A": "b"},
                    "approval": "always",
                    "icon": 1,
                },
            },
        )
    )
    assert (first.command, first.args, first.env, first.url) == ("c", ("-y",), {"K": "v"}, None)
    assert [first.approval_of(tool) for tool in "xyz"] == ["always", "never", "ask"]
    assert (second.url, second.headers, second.approval_of("x")) == ("https://e.example/mcp", {"A": "b"}, "always")
    assert "icon" in caplog.text


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({}, "command or url"),
        ({"command": "c", "url": "http://a"}, "command or url"),
        ({"command": "c", "args": "-y"}, "args"),
        ({"command": "c", "env": {"TOKEN": 12345678}}, "env"),
        ({"command": "c", "approval": "yes"}, "yes"),
        ({"command": "c", "timeout": -1}, "-1"),
        ({"url": "file:///etc/passwd"}, "file:///etc/passwd"),
        ({"type": "sse", "url": "http://a"}, "sse"),
        ("c", "str"),
    ],
)
def test_an_invalid_entry_is_named_without_its_secrets(tmp_path: Path, entry: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        read_servers(_written(tmp_path, {"a": entry}))
    assert "12345678" not in str(caught.value)


def test_names_are_those_that_every_format_of_calls_can_write() -> None:
    assert tool_name("my files", "read.file/é") == "my_files__read_file__"
    long = tool_name("s" * 40, "t" * 40)
    assert len(long) == 64
    assert long != tool_name("s" * 40, "t" * 41)


def test_calls_of_a_server_over_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way in which a call can end, on one server that starts twice."""
    pytest.importorskip("mcp")
    monkeypatch.setenv("SECRET_KEY", "1")
    log = tmp_path / "log"
    server = MCPServer(
        "fake",
        sys.executable,
        [str(SERVER)],
        env={"FAKE_MCP_LOG": str(log)},
        approval={"never": "never"},
        timeout_s=0.2,
    )

    async def run() -> None:
        box = Toolbox([server], ToolOptions(max_result_chars=1000))
        await box.open_async()
        assert "fake__echo" in box.tools
        assert {"fake__never", "fake__huge"}.isdisjoint(box.tools)
        first = box.definitions
        assert box.tools["fake__echo"].approval == "ask"
        texts = await asyncio.gather(*(box.call("fake__echo", {"text": str(i)}) for i in range(3)))
        assert [result.text for result in texts] == ["0", "1", "2"]
        big = await box.call("fake__big", {"text": ""})
        assert (big.is_cut, len(big.text)) == (True, 1000)
        assert "1000000" in big.text
        failed = await box.call("fake__fail", {"text": ""})
        assert (failed.is_error, failed.text) == (True, "no such city")
        late = await box.call("fake__slow", {"text": ""})
        assert (late.is_error, "0.2 s" in late.text) == (True, True)
        assert (await box.call("fake__beg", {"text": ""})).text == "refused"
        variables = (await box.call("fake__environment", {"text": ""})).text.split()
        assert "PATH" in variables
        assert "SECRET_KEY" not in variables
        for name in ("fake__never", "crash", "fake__none"):
            assert (await box.call(name, "{}")).is_error
        dead = await box.call("fake__crash", {"text": ""})
        assert dead.is_error
        assert "last word" not in dead.text  # standard error is not for the model
        assert (await box.call("fake__echo", {"text": "again"})).text == "again"
        assert (box.definitions, len(server._starts)) == (first, 2)  # the new process describes its tools differently
        await box.close_async()
        assert (await box.call("fake__echo", {"text": ""})).is_error

    asyncio.run(run())
    assert "notifications/cancelled" in log.read_text()  # the slow call was cancelled


def test_a_server_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    with http_server() as (address, seen):
        with MCPServer("web", url=f"{address}/mcp", headers={"Authorization": "Bearer x"}) as server:
            call = {tool.own_name: tool.call for tool in server.tools}
            assert asyncio.run(call["echo"]({"text": "hi"})).text == "hi"
            assert asyncio.run(call["crash"]({"text": ""})).text == "error: Session not found"
            assert asyncio.run(call["echo"]({"text": "again"})).text == "again"
            assert len(server._starts) == 2
            assert {headers.get("authorization") for headers in seen} == {"Bearer x"}
            monkeypatch.setattr("quire.tools.mcp_connection._MOST_JSON_BYTES", 100_000)
            assert asyncio.run(Toolbox([server]).call("web__big", {"text": ""})).is_error
        n_seen = len(seen)
        with pytest.raises(LoadError):
            MCPServer("web", url=f"{address}/moved", headers={"Authorization": "Bearer x"}).open()
        # The redirect led to another origin, which did not see the header.
        assert all(headers["host"].startswith("127.0.0.1") for headers in seen[n_seen:])


def test_a_server_that_keeps_ending_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    monkeypatch.setattr("quire.tools.mcp_server._MOST_STARTS", 1)
    with MCPServer("fake", sys.executable, [str(SERVER)]) as server:
        call = {tool.own_name: tool.call for tool in server.tools}
        connection = server._connection
        assert connection is not None
        assert asyncio.run(call["crash"]({})).is_error
        after = asyncio.run(call["echo"]({"text": "x"}))
        assert (after.is_error, "not running" in after.text) == (True, True)


def test_a_server_that_cannot_start_is_an_error_with_its_last_words() -> None:
    pytest.importorskip("mcp")
    with pytest.raises(LoadError, match="no licence"):
        MCPServer("dead", sys.executable, [str(SERVER), "--dead"]).open()
    with pytest.raises(LoadError, match="/no/such/program"):
        MCPServer("dead", "/no/such/program").open()


def test_closing_ends_the_process_and_its_children(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    pid_file = tmp_path / "pid"
    script = f"import os, runpy; open({str(pid_file)!r}, 'w').write(str(os.getpid())); runpy.run_path({str(SERVER)!r}, run_name='__main__')"
    with MCPServer("fake", sys.executable, ["-c", script]):
        pid = int(pid_file.read_text())
        os.kill(pid, 0)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("the process still runs")
