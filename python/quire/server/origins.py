"""Checks of Origin and Host: which pages may call the server, and by which names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

from ..errors import RequestError

__all__ = ["Origins", "host_of", "is_foreign", "preflight_headers"]

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.*-]*)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._*-]*)(?::([0-9]+|\*))?/?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
# llama.cpp's "localhost": pages of this machine on any port.
_LOCAL = ("localhost", "127.0.0.1", r"\[::1\]")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_MOST_HEADERS = 64
# Headers that the JavaScript clients of OpenAI and Anthropic send.  A preflight is granted any others that it names.
_HEADERS = (
    "authorization", "content-type", "accept", "x-api-key", "x-request-id", "anthropic-version", "anthropic-beta",
    "anthropic-dangerous-direct-browser-access", "openai-organization", "openai-project", "openai-beta",
    "idempotency-key", "x-stainless-arch", "x-stainless-async", "x-stainless-custom-poll-interval",
    "x-stainless-helper", "x-stainless-helper-method", "x-stainless-lang", "x-stainless-os",
    "x-stainless-package-version", "x-stainless-poll-helper", "x-stainless-retry-count", "x-stainless-runtime",
    "x-stainless-runtime-version", "x-stainless-timeout",
)  # fmt: skip


class Origins:
    """A list of allowed origins in the notations of llama.cpp, Ollama and vLLM.

    ``*`` alone allows every origin, ``localhost`` this machine on any port.  Elsewhere ``*`` stands for any port or for
    part of a name: ``http://localhost:*``, ``https://*.example.com``, ``app://*``.  Without a scheme, both http and
    https are allowed.  RequestError for an invalid origin.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        texts = [text.strip().strip("'\"") for given in patterns for text in given.split(",")]
        self._all = "*" in texts
        self._patterns = [_pattern(text) for text in texts if text not in ("", "*")]

    def allow(self, origin: str) -> bool:
        """Return whether pages of this origin, as a browser writes it, may call the server."""
        return self._all or any(pattern.fullmatch(origin) for pattern in self._patterns)


def _pattern(text: str) -> re.Pattern[str]:
    if text == "null":
        return re.compile("null")
    if text == "localhost":
        return re.compile(rf"https?://(?:{'|'.join(_LOCAL)})(?::\d+)?")
    found = _ORIGIN.fullmatch(text)
    if found is None or not found[2]:
        raise RequestError(
            f"[serve] {text!r:.80} is not an origin: write scheme://name:port, with * for any port, or * alone"
        )
    scheme, host, port = (found[1] or "").lower(), found[2].lower(), found[3]
    schemes = "https?" if scheme in ("", "*") else re.escape(scheme)
    name = re.escape(host).replace(r"\*", "[^/:@]*")
    if port == "*" or (host == "*" and scheme not in _DEFAULT_PORTS):
        ports = r"(?::\d+)?"
    elif port is None or port == _DEFAULT_PORTS.get(scheme):
        ports = ""
    else:
        ports = f":{port}"
    return re.compile(f"{schemes}://{name}{ports}", re.IGNORECASE)


def host_of(authority: str) -> str | None:
    """Return the name or address in a Host header without brackets and port; None if it is invalid (RFC 3986)."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None or int(found[3] or 0) > 65535:
        return None
    if found[1] is None:
        return found[2].lower()
    try:
        return str(ipaddress.IPv6Address(found[1]))
    except ValueError:
        return None


def is_foreign(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser says that a page of another origin sent the request.  Programs send no such headers."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
        return True
    return site is not None and site not in (b"same-origin", b"none")


def preflight_headers(wanted: bytes, *, private_network: bool) -> list[tuple[bytes, bytes]]:
    """The headers that let an allowed page send a request.

    Args:
        wanted: The header Access-Control-Request-Headers.
        private_network: Whether the browser asks to reach an address of a private network.
    """
    asked = [name.strip().lower() for name in wanted.decode("latin-1").split(",")[:_MOST_HEADERS]]
    names = dict.fromkeys([*_HEADERS, *(name for name in asked if _TOKEN.fullmatch(name))])
    headers = [
        (b"access-control-allow-headers", ", ".join(names).encode("ascii")),
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-max-age", b"600"),
    ]
    if private_network:
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers
