"""Read the file of MCP servers: Claude Desktop's format, with Quire's policy of approval."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import RequestError
from .tool import APPROVALS, Approval

__all__ = ["ServerConfig", "read_servers"]

_MOST_BYTES = 1 << 20
_MOST_SERVERS = 64
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,64}")
_log = logging.getLogger("quire.tools")
# Keys of other programs' files for the same decision: tools that run without asking.
_ALWAYS = ("alwaysAllow", "autoApprove")
_KEYS = {"command", "args", "env", "cwd", "url", "headers", "type", "transport", "disabled", "timeout", "approval"}
_TRANSPORTS = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url"}


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One MCP server: a command to start (``command``) or an address (``url``).

    ``approval``: the policy of its tools by their own names; ``"*"`` is for the others, otherwise ``"ask"``.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    approval: Mapping[str, Approval] = field(default_factory=dict)
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        place = f"[mcp] {self.name!r:.80}"
        if _NAME.fullmatch(self.name) is None:
            raise RequestError(
                f"{place} is not a server's name: expected 1 to 64 characters without control characters"
            )
        if (self.command is None) == (self.url is None):
            raise RequestError(f"{place}: give either command or url")
        if self.url is not None and not _is_address(self.url):
            raise RequestError(f"{place}: url {self.url!r:.80} is not an http or https address")
        for tool, policy in self.approval.items():
            if policy not in APPROVALS:
                raise RequestError(
                    f"{place}: approval {policy!r:.40} of {tool!r:.80} is unknown: expected ask, always or never"
                )
        if self.timeout_s is not None and not 0 < self.timeout_s <= 86_400:
            raise RequestError(
                f"{place}: timeout {self.timeout_s!r:.40} is out of range: expected above 0, at most 86400 seconds"
            )

    def approval_of(self, tool: str) -> Approval:
        """Return the policy of a tool."""
        return self.approval.get(tool, self.approval.get("*", "ask"))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def read_servers(path: Path) -> list[ServerConfig]:
    """Return the enabled servers of a file.  RequestError names what is invalid in it."""
    try:
        content = path.read_bytes()
        if len(content) > _MOST_BYTES:
            raise RequestError(f"[mcp] {path} is larger than {_MOST_BYTES} bytes")
        given = json.loads(content)
    except OSError as error:
        raise RequestError(f"[mcp] cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"[mcp] {path} is not JSON: {error}") from None
    servers = given.get("mcpServers") if isinstance(given, dict) else None
    if not isinstance(servers, dict):
        raise RequestError(f'[mcp] {path} has no object "mcpServers"')
    if len(servers) > _MOST_SERVERS:
        raise RequestError(f"[mcp] {path} has {len(servers)} servers: at most {_MOST_SERVERS} are allowed")
    return [_server(name, entry) for name, entry in servers.items() if not _is_disabled(name, entry)]


def _is_disabled(name: str, entry: Any) -> bool:
    if not isinstance(entry, dict):
        raise RequestError(f"[mcp] mcpServers.{name:.80}: expected an object, not {type(entry).__name__}")
    return entry.get("disabled") is True


def _server(name: str, entry: dict[str, Any]) -> ServerConfig:
    place = f"mcpServers.{name:.80}"
    if unread := sorted(set(entry) - _KEYS - {*_ALWAYS}):
        _log.warning("[mcp] %s: ignoring %s", place, ", ".join(f"{key:.40}" for key in unread))
    kind = _text(entry, "type", place) or _text(entry, "transport", place)
    if kind is not None and _TRANSPORTS.get(kind) not in entry:
        raise RequestError(
            f"[mcp] {place}: type {kind!r:.40} is unsupported here: expected stdio with command, or http with url"
        )
    return ServerConfig(
        name=name,
        command=_text(entry, "command", place),
        args=_texts(entry, "args", place),
        env=_table(entry, "env", place),
        cwd=_text(entry, "cwd", place),
        url=_text(entry, "url", place),
        headers=_table(entry, "headers", place),
        approval=_approval(entry, place),
        timeout_s=_seconds(entry, place),
    )


def _approval(entry: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the policies by tool, with those of other programs' keys; ``approval`` takes precedence."""
    given = entry.get("approval")
    own = {"*": given} if isinstance(given, str) else _table(entry, "approval", place)
    return {**{tool: "always" for key in _ALWAYS for tool in _texts(entry, key, place)}, **own}


def _seconds(entry: dict[str, Any], place: str) -> float | None:
    value = entry.get("timeout")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _wrong(place, "timeout", "a number of seconds", value)
    return value


def _text(entry: dict[str, Any], key: str, place: str) -> str | None:
    value = entry.get(key)
    if value is not None and not _is_text(value):
        raise _wrong(place, key, "text", value)
    return value


def _texts(entry: dict[str, Any], key: str, place: str) -> tuple[str, ...]:
    value = entry.get(key) or []
    if not isinstance(value, list) or not all(map(_is_text, value)):
        raise _wrong(place, key, "a list of texts", value)
    return tuple(value)


def _table(entry: dict[str, Any], key: str, place: str) -> dict[str, str]:
    value = entry.get(key) or {}
    if not isinstance(value, dict) or not all(map(_is_text, value.values())):
        raise _wrong(place, key, "an object of texts", value)
    return dict(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _wrong(place: str, key: str, expected: str, value: object) -> RequestError:
    # Values of env and headers may be secrets, so only the type is shown.
    return RequestError(f"[mcp] {place}.{key}: expected {expected}, not {type(value).__name__}")
