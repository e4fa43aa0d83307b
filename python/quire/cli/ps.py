"""``quire ps``: list the models loaded in a server."""

from __future__ import annotations

import json

import click

from .help_page import Command
from .server_call import call, server_options
from .tables import print_table
from .text import size_text

__all__ = ["command"]


@click.command("ps", cls=Command)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, server: str | None, api_key: str | None, as_json: bool) -> None:
    """List the models that a running server has loaded."""
    found = call(server, api_key, "/v1/models/active")
    if as_json:
        print(json.dumps(found))
        return
    rows = [
        (row["model"], row["state"], str(row["requests"]), size_text(row["resident_bytes"])) for row in found["models"]
    ]
    print_table(("name", "state", "requests>", "memory>"), rows)
