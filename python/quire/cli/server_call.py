"""Calls of commands to a server that runs."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import click

from ..errors import RequestError

__all__ = ["call", "server_options"]

_TIMEOUT_S = 30


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--server`` and ``--api-key``."""
    address = click.option(
        "--server", metavar="URL", help="The server's address [QUIRE_SERVER, else http://127.0.0.1:8080]."
    )
    key = click.option("--api-key", metavar="KEY", help="Its key [QUIRE_API_KEY].")
    return address(key(function))


def call(server: str | None, api_key: str | None, path: str, body: object = None) -> Any:
    """What a route answers.  RequestError where nobody does, or with the server's own words."""
    base = (server or os.environ.get("QUIRE_SERVER") or "http://127.0.0.1:8080").rstrip("/")
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
            f"[server] a server must answer at {base} but {error!s:.200} (--server names another)"
        ) from None


def _said(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read())["error"]
        return str(found if isinstance(found, str) else found["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"the server answers {error.code}"
