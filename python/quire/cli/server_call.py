"""Call a running server from a command."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import click

from ..errors import RequestError
from .ollama_host import VARIABLE, ollama_address

__all__ = ["call", "reason_of", "server_options"]

_TIMEOUT_S = 30


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--server`` and ``--api-key``."""
    address = click.option(
        "--server",
        metavar="URL",
        help="The server's address [QUIRE_SERVER, OLLAMA_HOST, else http://127.0.0.1:8080].",
    )
    key = click.option("--api-key", metavar="KEY", help="The server's API key [QUIRE_API_KEY].")
    return address(key(function))


def call(server: str | None, api_key: str | None, path: str, body: object = None) -> Any:
    """Return a route's JSON answer.  RequestError if there is no server, or with the server's own message."""
    base = (server or os.environ.get("QUIRE_SERVER") or _of_ollama() or "http://127.0.0.1:8080").rstrip("/")
    if not base.startswith(("http://", "https://")):
        base = f"http://{base}"
    key = api_key or os.environ.get("QUIRE_API_KEY")
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, headers)  # noqa: S310 (checked above)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise RequestError(f"[server] {_said(error)}") from None
    except (OSError, ValueError) as error:
        raise RequestError(
            f"[server] no server at {base}: {reason_of(error)} (start one with quire serve, or set --server)"
        ) from None


def _of_ollama() -> str:
    """Return the address where ``quire serve`` listens with the same ``OLLAMA_HOST``; "" without that variable."""
    value = os.environ.get(VARIABLE, "")
    if not value.strip():
        return ""
    scheme, host, port = ollama_address(value)
    if host in ("0.0.0.0", "::"):  # noqa: S104 (a client cannot connect to "every address")
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def reason_of(error: Exception) -> str:
    """Return in a few words why the server does not answer."""
    reason = getattr(error, "reason", error)
    text = getattr(reason, "strerror", None) or str(reason)
    return (text[:1].lower() + text[1:])[:200]


def _said(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read())["error"]
        return str(found if isinstance(found, str) else found["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"the server responded with status {error.code}"
