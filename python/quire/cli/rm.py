"""``quire rm``: delete a name from the registry, or a model from the hub's cache."""

from __future__ import annotations

import click

from ..errors import LoadError
from .help_page import Command
from .text import note, one_line, size_text

__all__ = ["command", "forget"]


@click.command("rm", cls=Command)
@click.argument("names", nargs=-1, required=True)
def command(*, names: tuple[str, ...]) -> None:
    """Delete NAMES from the registry, keeping their models, or delete models from the hub's cache.

    Models of other programs cannot be deleted.
    """
    for name in names:
        note(forget(name))


def forget(name: str) -> str:
    """Delete an installed model or a registry name, and describe what was done.  LoadError if there is none."""
    from ..hub.locate import repository_of
    from ..hub.registry import Registry
    from ..hub.remove import remove_stored
    from ..hub.stores import find_stored, stored_models

    if Registry().remove(name):
        return f"removed the name {one_line(name)}; its model stays"
    models = stored_models()
    wanted = repository_of(name)
    found = find_stored(name, models) or (None if wanted is None else find_stored(wanted, models))
    if found is None:
        raise LoadError(f"[rm] no such model on this machine: {name} (see quire list)")
    return f"deleted {one_line(found.name)}: {size_text(remove_stored(found))}"
