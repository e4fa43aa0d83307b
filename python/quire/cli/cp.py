"""``quire cp``: another name for a model, with options of its own."""

from __future__ import annotations

import json
from typing import Any

import click

from .text import note, one_line

__all__ = ["command"]


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE``; a value is JSON where it can be, else a text."""
    found: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"must be KEY=VALUE but is {text!r:.80}", ctx, param)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


@click.command("cp", short_help="Give a model another name.")
@click.argument("source")
@click.argument("name")
@click.option("-sys", "--system", metavar="TEXT", help="The system message of its chats.")
@click.option(
    "--option", "options", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="Of the engine: ctx-size=8192."
)
@click.option("--sampling", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="temperature=0.2, top_k=20, ...")
@click.option("--keep-alive", metavar="TIME", help="How long a server keeps it open: 5m, 0, -1.")
def command(
    *, source: str, name: str, system: str | None, options: dict[str, Any], sampling: dict[str, Any],
    keep_alive: str | None,
) -> None:  # fmt: skip
    """Have NAME stand for SOURCE, a model's name or file, in the registry (docs/registry.md)."""
    from ..hub.registry import Preset, Registry
    from ..sampling import SamplingParams

    names = {key.replace("-", "_"): value for key, value in sampling.items()}
    unknown = set(names) - set(SamplingParams.__dataclass_fields__)
    if unknown:
        raise click.UsageError(f"--sampling must name fields of SamplingParams but has {sorted(unknown)[0]!r:.80}")
    SamplingParams(**names)
    registry = Registry()
    registry.add(name, Preset(source, system, options, names, keep_alive))
    note(f"{one_line(name)} stands for {one_line(source)} ({registry.path})")
