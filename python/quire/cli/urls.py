"""URLs of servers as options."""

from __future__ import annotations

from urllib.parse import urlsplit

import click

__all__ = ["server_urls"]


def server_urls(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Split values with commas between.  BadParameter for a URL with more than a host and a port."""
    found = tuple(part.strip() for value in values for part in value.split(",") if part.strip())
    for url in found:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"{url!r:.80} is not a URL: write http://HOST:PORT", ctx, param)
        try:
            parts = urlsplit(url)
            is_plain = parts.port != 0 and parts.hostname and "@" not in parts.netloc and url.isascii()
        except ValueError:
            is_plain = False
        if not is_plain or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise click.BadParameter("a server's URL has only a host and a port: http://HOST:PORT", ctx, param)
    return found
