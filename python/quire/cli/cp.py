"""``quire cp``: give a model another name, with options of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..errors import LoadError
from .help_page import Command
from .text import note, one_line

__all__ = ["command", "keep_preset"]


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs; a value that is not JSON is a string."""
    found: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected KEY=VALUE, got {text!r:.80}", ctx, param)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


@click.command("cp", cls=Command)
@click.argument("source")
@click.argument("name")
@click.option("-sys", "--system", metavar="TEXT", help="System message for its chats.")
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="An engine option, for example ctx-size=8192.",
)
@click.option(
    "--sampling",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="A sampling parameter, for example temperature=0.2.",
)
@click.option(
    "--keep-alive", metavar="TIME", help="How long a server keeps the idle model loaded: 5m, 0 or -1 (always)."
)
def command(
    *, source: str, name: str, system: str | None, options: dict[str, Any], sampling: dict[str, Any],
    keep_alive: str | None,
) -> None:  # fmt: skip
    """Store NAME for SOURCE, a model's name or file, in the registry (docs/registry.md)."""
    keep_preset(source, name, system=system, options=options, sampling=sampling, keep_alive=keep_alive)


def keep_preset(
    source: str, name: str, *, system: str | None, options: dict[str, Any], sampling: dict[str, Any],
    keep_alive: str | None = None, template: str | None = None,
) -> None:  # fmt: skip
    """Store a name for a model in the registry.  UsageError for an unknown field of ``SamplingParams``."""
    from ..hub.registry import Preset, Registry
    from ..params.sampling import SamplingParams

    names = {key.replace("-", "_"): value for key, value in sampling.items()}
    unknown = set(names) - set(SamplingParams.__dataclass_fields__)
    if unknown:
        raise click.UsageError(f"unknown sampling parameter {sorted(unknown)[0]!r:.80}")
    SamplingParams(**names)
    registry = Registry()
    model = _lasting(source)
    registry.add(name, Preset(model, system, options, names, keep_alive, template))
    note(f"{one_line(name)} now refers to {one_line(model)} ({registry.path})")


def _lasting(source: str) -> str:
    """Return a name, or an absolute path, because the registry is also read from other folders."""
    from ..hub.locate import is_known_name, repository_of
    from ..hub.names import is_local_model

    path = Path(source).expanduser()
    if path.exists():
        return str(path.absolute())
    if is_local_model(source) or (repository_of(source) is None and not is_known_name(source)):
        raise LoadError(f"[cp] no such model: {source!r:.80} is neither a known name nor a file (quire list)")
    return source
