"""``quire stop``: unload a model from a server."""

from __future__ import annotations

import click

from .help_page import Command
from .server_call import call, server_options
from .text import note, one_line

__all__ = ["command"]


@click.command("stop", cls=Command)
@click.argument("name")
@server_options
def command(*, name: str, server: str | None, api_key: str | None) -> None:
    """Unload NAME from a running server to free its memory; the next request loads it again."""
    call(server, api_key, "/v1/models/unload", {"model": name.removesuffix(":latest")})
    note(f"{one_line(name)} is unloaded")
