"""The items of answers of ``/v1/responses``, in OpenAI's format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..answers import new_id
from .tool_names import ToolNames

if TYPE_CHECKING:
    from ....tools.tool import Tool, ToolResult
    from .mcp_tools import McpTools

__all__ = [
    "approval_item",
    "call_item",
    "listing_item",
    "mcp_call_item",
    "message_item",
    "reasoning_item",
    "text_part",
    "with_result",
]


def text_part(text: str) -> dict[str, Any]:
    """Return the content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(id_: str, text: str) -> dict[str, Any]:
    """Return a message."""
    return {"id": id_, "type": "message", "role": "assistant", "status": "completed", "content": [text_part(text)]}


def reasoning_item(text: str) -> dict[str, Any]:
    """Return reasoning."""
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{new_id()}", "type": "reasoning", "summary": [], "content": content}


def call_item(made: dict[str, Any], names: ToolNames) -> dict[str, Any]:
    """Return a call that the client runs."""
    return {
        "id": f"fc_{new_id()}",
        "type": "function_call",
        "status": "completed" if _is_whole(made["function"]["arguments"]) else "incomplete",
        "call_id": made["id"],
        **names.fields(made["function"]["name"]),
        "arguments": made["function"]["arguments"],
    }


def _is_whole(arguments: str) -> bool:
    """Return True if arguments were not cut off by ``max_output_tokens``."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True


def listing_item(label: str, mcp: McpTools) -> dict[str, Any]:
    """Return the tools of an MCP server."""
    tools = [
        {
            "name": tool.own_name,
            "description": tool.description,
            "input_schema": tool.parameters,
            "annotations": tool.hints or None,
        }
        for tool in mcp.of(label)
    ]
    return {"id": f"mcpl_{new_id()}", "type": "mcp_list_tools", "server_label": label, "tools": tools, "error": None}


def mcp_call_item(tool: Tool, arguments: str, approval_id: str | None = None) -> dict[str, Any]:
    """Return a call that the server runs, before it has a result."""
    return {
        "id": f"mcp_{new_id()}",
        "type": "mcp_call",
        "status": "in_progress",
        "approval_request_id": approval_id,
        "server_label": tool.server,
        "name": tool.own_name,
        "arguments": arguments,
        "output": None,
        "error": None,
    }


def with_result(item: dict[str, Any], result: ToolResult) -> dict[str, Any]:
    """Return a call with its result."""
    outcome = {"error": result.text, "status": "failed"} if result.is_error else {"output": result.text}
    return {**item, "status": "completed", **outcome}


def approval_item(tool: Tool, arguments: str) -> dict[str, Any]:
    """Return the question whether a call may run."""
    return {
        "id": f"mcpr_{new_id()}",
        "type": "mcp_approval_request",
        "server_label": tool.server,
        "name": tool.own_name,
        "arguments": arguments,
    }
