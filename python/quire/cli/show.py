"""``quire show``: show what a model name refers to, in a few lines."""

from __future__ import annotations

import json
from typing import Any

import click

from ..errors import LoadError
from .foreign_options import ForeignCommand
from .tables import print_table
from .text import size_text

__all__ = ["command"]


@click.command("show", cls=ForeignCommand)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, name: str, as_json: bool) -> None:
    """Show the file, architecture, size and preset of NAME without downloading it.  quire info shows the whole file."""
    found = _described(name)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    shown = {**found, "size_bytes": size_text(found["size_bytes"])} if "size_bytes" in found else found
    rows = [(key.replace("_", " "), str(value)) for key, value in shown.items() if value not in (None, {}, "")]
    print_table(("", "value"), [(key.removesuffix(" bytes"), value) for key, value in rows])


def _described(name: str) -> dict[str, Any]:
    from ..files.ollama import open_model_file
    from ..hub.locate import locate, preset_of

    preset = preset_of(name)
    path = locate(name, None)
    if not path.exists():
        raise LoadError(f"[show] {name} is not on this machine (see quire list, or download it with quire pull)")
    found: dict[str, Any] = {"name": name, "path": str(path)}
    if path.is_file():
        reader = open_model_file(path)
        metadata = reader.metadata
        arch = metadata.text("general.architecture", "")
        found |= {
            "title": metadata.text("general.name", ""),
            "architecture": arch,
            "size_bytes": reader.size_bytes,
            "context": metadata.integer(f"{arch}.context_length", 0),
            "license": metadata.text("general.license", ""),
            "chat_template": "tokenizer.chat_template" in metadata,
        }
    if preset is not None:
        found |= {"model": preset.model, "system": preset.system, "options": dict(preset.options),
                  "sampling": dict(preset.sampling), "keep_alive": preset.keep_alive}  # fmt: skip
    return found
