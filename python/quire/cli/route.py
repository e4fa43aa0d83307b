"""``quire route``: a front for several servers."""

from __future__ import annotations

import asyncio
import logging

import click

from ..errors import RequestError, UnsupportedError
from .help_page import Command
from .text import note
from .urls import server_urls

__all__ = ["command"]


@click.command("route", cls=Command)
@click.option("--to", "targets", multiple=True, required=True, callback=server_urls, metavar="URL,...",
              help="The servers: quire serve of the same model; may be repeated.")  # fmt: skip
@click.option("--prefill", multiple=True, callback=server_urls, metavar="URL,...",
              help="Servers that read long prompts first; also name them in --cache-peers of the others"
                   " [none].")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, metavar="N",
              help="Port to listen on; 0: any free port.")  # fmt: skip
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="Accept this Host header on loopback, too.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Allow a public address; only the servers check API keys.")
def command(
    *,
    targets: tuple[str, ...],
    prefill: tuple[str, ...],
    host: str,
    port: int,
    allowed_hosts: tuple[str, ...],
    insecure: bool,
) -> None:
    """Pass requests on to several servers of the same model.

    A request goes to the server that has read the most of its prompt, unless another one has much less to do.  If a
    server fails before it answers, another one is asked.  API keys and limits are those of the servers.
    """
    from ..server.settings import is_loopback

    if not is_loopback(host) and not insecure:
        raise RequestError(f"[route] {host} is a public address: give the servers API keys, then add --insecure")
    try:
        from ..routing.serve import serve
    except ImportError:
        raise UnsupportedError('[route] needs httpx: pip install "quire-llm[route]"') from None
    names = ("localhost", "127.0.0.1", "::1", host.lower(), *(name.lower() for name in allowed_hosts))
    logging.basicConfig(format="quire: %(message)s", level=logging.WARNING)
    logging.getLogger("quire.route").setLevel(logging.INFO)
    asyncio.run(serve(targets, host, port, names if is_loopback(host) else None, say=note, prefill=prefill))
