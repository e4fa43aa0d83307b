"""Parse ``OLLAMA_HOST``, ``[scheme://][host][:port]``, as Ollama does (its ``envconfig``)."""

from __future__ import annotations

import ipaddress
import re

import click

__all__ = ["ollama_address"]

VARIABLE = "OLLAMA_HOST"
_PORTS = {"": 11434, "http": 80, "https": 443}
_FORM = re.compile(r"(?:\[([^\[\]/]+)\]|([^\[\]:/]*))(?::(\d{0,5}))?")
_ALL = "0.0.0.0"  # noqa: S104 (Ollama listens on all addresses if only a port is given)


def ollama_address(value: str) -> tuple[str, str, int]:
    """Return scheme, host and port.

    The default port is 11434, or that of the scheme.  A port without a host means every address.  UsageError for a
    value that is not an address or has a path.
    """
    text = value.strip().strip("\"'").strip()
    before, mark, after = text.partition("://")
    scheme, rest = (before, after) if mark else ("", text)
    rest = rest.rstrip("/")
    found = None if scheme not in _PORTS or (mark and not scheme) else _FORM.fullmatch(rest)
    if _is_ipv6(rest):
        host, port = rest, ""
    elif found is None or (found[1] and not _is_ipv6(found[1])) or int(found[3] or 0) > 65535:
        raise click.UsageError(f"invalid {VARIABLE} {value!r:.80}: expected an address such as 127.0.0.1:11434")
    else:
        host, port = found[1] or found[2], found[3] or ""
    host = host or (_ALL if port else "127.0.0.1")
    return scheme or "http", host, int(port) if port else _PORTS[scheme]


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
