"""``quire help``: show the help of the program or of a command."""

from __future__ import annotations

import click

from .help_page import Command, page_settings

__all__ = ["command"]


@click.command("help", cls=Command)
@click.argument("name", metavar="[COMMAND]", required=False)
@click.option("--man", is_flag=True, help="Print a manual page of all commands; pipe it to man -l -.")
def command(*, name: str | None, man: bool) -> None:
    """Show the help of COMMAND, or of quire itself."""
    from .main import cli

    if man:
        from .man_page import man_page

        click.echo(man_page(), nl=False)
        return
    root = click.Context(cli, info_name="quire", **page_settings())
    if name is None:
        click.echo(cli.get_help(root))
        return
    found = cli.get_command(root, name)
    if found is None:
        raise click.UsageError(f"no such command: {name!r:.80}")
    click.echo(found.get_help(click.Context(found, info_name=found.name, parent=root)))
