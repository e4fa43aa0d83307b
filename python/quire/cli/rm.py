"""``quire rm``: a name of the registry, or a model of the hub's cache, goes."""

from __future__ import annotations

import click

from ..errors import LoadError
from .help_page import Command
from .text import note, one_line, size_text

__all__ = ["command", "forget"]


@click.command("rm", cls=Command)
@click.argument("names", nargs=-1, required=True)
def command(*, names: tuple[str, ...]) -> None:
    """Delete NAMES: those of the registry, whose models stay, and models in the hub's cache.

    Models of other programs are theirs to delete.
    """
    for name in names:
        note(forget(name))


def forget(name: str) -> str:
    """Delete one, and tell what was done.  LoadError where there is none."""
    from ..hub.locate import repository_of
    from ..hub.registry import Registry
    from ..hub.remove import remove_stored
    from ..hub.stores import find_stored, stored_models

    if Registry().remove(name):
        return f"the name {one_line(name)} is gone; its model stays"
    models = stored_models()
    wanted = repository_of(name)
    found = find_stored(name, models) or (None if wanted is None else find_stored(wanted, models))
    if found is None:
        raise LoadError(f"[rm] {name} must be a model on this machine but is none (quire list)")
    return f"{one_line(found.name)} is deleted: {size_text(remove_stored(found))}"
