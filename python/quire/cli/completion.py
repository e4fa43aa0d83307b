"""``quire completion``: print the shell script that completes commands, options and model names."""

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
    """Print the completion script for SHELL, by default your current shell."""
    from .main import COMPLETE_VARIABLE, cli

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name)
    if found is None:
        raise click.UsageError(f"unsupported shell {name!r:.40}: use {', '.join(_SHELLS)}")
    click.echo(found(cli, {}, "quire", COMPLETE_VARIABLE).source())
