"""Check tools of a real MCP server, with OpenAI's client: ``python check_mcp.py http://127.0.0.1:PORT``.

The server runs with ``--mcp`` for mcp-server-time, whose ``get_current_time`` runs without asking.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from datetime import datetime, timezone
from typing import Any

from checks import MODEL, Checks, finish
from openai import OpenAI

checks = Checks()
client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
TIME = {"type": "mcp", "server_label": "time", "require_approval": "never"}
ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 256, "input": "Get the time in UTC."}


def choice(name: str) -> Any:
    return {"type": "mcp", "server_label": "time", "name": name}


def loop() -> None:
    answer: Any = client.responses.create(tools=[TIME], tool_choice=choice("get_current_time"), **ASKED)
    kinds = [item.type for item in answer.output]
    checks.equal("items", (kinds[:2], kinds[-1]), (["mcp_list_tools", "mcp_call"], "message"))
    listing, call = answer.output[:2]
    checks.true("listed", {"get_current_time", "convert_time"} <= {tool.name for tool in listing.tools})
    checks.equal("name", (call.name, call.server_label, call.status), ("get_current_time", "time", "completed"))
    told = datetime.fromisoformat(json.loads(call.output)["datetime"])
    checks.true("time", abs((datetime.now(timezone.utc) - told).total_seconds()) < 60)
    checks.equal("kind of item", type(call).__name__, "McpCall")


def events() -> None:
    with client.responses.stream(tools=[TIME], tool_choice=choice("get_current_time"), **ASKED) as stream:
        kinds = [event.type for event in stream]
    for kind in ("mcp_list_tools.completed", "mcp_call_arguments.done", "mcp_call.completed"):
        checks.true(kind, f"response.{kind}" in kinds)
    checks.equal("last", kinds[-1], "response.completed")


def approval() -> None:
    first: Any = client.responses.create(tools=[TIME], tool_choice=choice("convert_time"), **ASKED)
    request = first.output[-1]
    checks.equal("request", (request.type, request.name), ("mcp_approval_request", "convert_time"))
    for said, kinds in ((True, ["mcp_call", "message"]), (True, None)):
        given = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": said}
        more = {**ASKED, "input": [given], "previous_response_id": first.id, "tools": [TIME], "tool_choice": "none"}
        if kinds is None:
            checks.raises("a second answer", Exception, lambda more=more: client.responses.create(**more))
            continue
        second: Any = client.responses.create(**more)
        checks.equal("items", [item.type for item in second.output], kinds)
        checks.equal("of the request", second.output[0].approval_request_id, request.id)


def fetched(path: str, body: Any = None, **headers: str) -> Any:
    """Send a request without OpenAI's client, which does not know these routes."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{sys.argv[1]}{path}", content, {"Content-Type": "application/json", **headers})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        return json.load(response)


def page() -> None:
    listed = fetched("/v1/tools")
    checks.equal("servers", listed["servers"], [{"name": "time", "ready": True}])
    arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    body = {"name": "time__convert_time", "arguments": arguments, "approved": True}
    run = fetched("/v1/tools/call", body, **{"X-Quire-Session": listed["session"]})
    checks.true("converted", "21:00" in run["content"] and not run["is_error"])


for check in (loop, events, approval, page):
    check()
finish(checks, "MCP", 14)
