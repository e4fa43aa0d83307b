"""``quire info --architectures``: list the supported architectures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .tables import print_table

if TYPE_CHECKING:
    from ..models import Architecture

__all__ = ["show"]


def show(*, as_json: bool) -> None:
    from ..models import supported

    found = supported()
    if as_json:
        print(json.dumps({"architectures": [_as_object(each) for each in found]}))
        return
    print_table(
        ("architecture", "description", "checkpoint classes", "formats"),
        ((each.name, each.description, ", ".join(each.classes), ", ".join(_formats(each))) for each in found),
    )
    print(f"{len(found)} architectures.")


def _as_object(architecture: Architecture) -> dict[str, object]:
    return {
        "architecture": architecture.name,
        "description": architecture.description,
        "classes": list(architecture.classes),
        "formats": _formats(architecture),
    }


def _formats(architecture: Architecture) -> list[str]:
    return ["gguf", "safetensors"] if architecture.classes else ["gguf"]
