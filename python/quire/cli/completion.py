"""``quire completion``: what a shell needs to complete commands, options and models' names."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from .help_page import Command

__all__ = ["command"]

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def command(*, shell: str | None) -> None:
    """Print the script for SHELL [the one that is yours]."""
    from .main import COMPLETE_VARIABLE, cli

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name)
    if found is None:
        raise click.UsageError(f"no completion for shell {name!r:.40}: give one of {', '.join(_SHELLS)}")
    click.echo(found(cli, {}, "quire", COMPLETE_VARIABLE).source())
