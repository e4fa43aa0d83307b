"""``/v1/tools``: the tools of the operator's MCP servers, for the chat page and the caller's programs."""

from __future__ import annotations

import hmac
import time
from typing import Any

from ..body_types import Body
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext
from ..origins import is_foreign
from .fields import Name, Text

__all__ = ["CallBody", "call_tool", "list_tools", "refuse_pages"]


class CallBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A call: ``name`` as in the list, ``arguments`` as an object or its JSON text.

    ``approved``: a person allowed this call.
    """

    name: Name
    arguments: dict[str, Any] | Text = {}
    approved: bool = False


def refuse_pages(context: RequestContext[Any]) -> None:
    """Raise ApiError 403 for a request of a page of another origin, even of one that may use the other routes."""
    if is_foreign(dict(context.scope["headers"])):
        raise ApiError(403, "origin_not_allowed", "pages of other origins cannot use the server's tools")


async def list_tools(context: RequestContext[None]) -> Reply:
    """List the tools that may be offered to a model, and their servers."""
    refuse_pages(context)
    toolbox = context.service.toolbox
    tools = [
        {
            "name": tool.name,
            "server": tool.server,
            "tool": tool.own_name,
            "approval": tool.approval,
            "hints": tool.hints or {},
            "definition": tool.definition,
        }
        for tool in toolbox.tools.values()
    ]
    servers = [{"name": each.name, "ready": each.is_open and each.error is None} for each in toolbox.servers]
    session = context.service.session_of(context.caller) if toolbox.servers else None
    return Reply.json({"object": "list", "data": tools, "servers": servers, "session": session})


async def call_tool(context: RequestContext[CallBody]) -> Reply:
    """Run a call and return its result.  It is cancelled if the client disconnects."""
    refuse_pages(context)
    service, body = context.service, context.body
    given = dict(context.scope["headers"]).get(b"x-quire-session", b"")
    if not hmac.compare_digest(given, service.session_of(context.caller).encode()):
        raise ApiError(403, "invalid_session", "missing or outdated x-quire-session: take it from GET /v1/tools")
    tool = service.toolbox.tools.get(body.name)
    if tool is None:
        raise ApiError(404, "tool_not_found", f"no such tool: {body.name!r:.80}", "name")
    if tool.approval != "always" and not body.approved:
        raise ApiError(403, "approval_required", f'{body.name!r:.80} runs only with "approved": true', "approved")
    started_s = time.monotonic()
    result = await service.toolbox.call(body.name, body.arguments)
    shown = {"object": "tool.result", "name": body.name, "content": result.text, "is_error": result.is_error}
    return Reply.json({**shown, "is_cut": result.is_cut, "seconds": round(time.monotonic() - started_s, 3)})
