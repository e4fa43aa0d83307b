"""``quire list``: list the models on this machine."""

from __future__ import annotations

import json
import time

import click

from .help_page import Command
from .tables import print_table
from .text import size_text

__all__ = ["command"]


@click.command("list", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> None:
    """List the models in the caches of Hugging Face, Ollama, LM Studio and llama.cpp, and the names in the registry."""
    from ..hub.registry import Registry
    from ..hub.stores import stored_models

    models, presets = stored_models(), Registry().presets
    if as_json:
        rows = [
            {
                "name": m.name,
                "path": str(m.path),
                "store": m.store,
                "size_bytes": m.size_bytes,
                "modified_s": m.modified_s,
            }
            for m in models
        ]
        print(json.dumps({"models": rows, "names": {name: preset.model for name, preset in presets.items()}}))
        return
    names = [(name, f"name for {preset.model}", "", "") for name, preset in sorted(presets.items())]
    stored = [(m.name, m.store, size_text(m.size_bytes), _day(m.modified_s)) for m in models]
    if not names and not stored:
        print("no models yet (quire pull qwen3:0.6b downloads a small one)")
        return
    print_table(("name", "where", "size>", "modified"), [*names, *stored])


def _day(modified_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(modified_s))
