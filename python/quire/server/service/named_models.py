"""The models of this machine's stores, and the names of the registry, for a server that serves all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...hub.locate import locate, preset_of
from ...hub.registry import Preset, Registry
from ...hub.stores import stored_models

__all__ = ["NamedModel", "named_models"]


@dataclass(frozen=True)
class NamedModel:
    """A file or folder, and what a preset says of it."""

    path: Path
    preset: Preset | None = None


def named_models() -> dict[str, NamedModel]:
    """All that are on this machine now, by name; those of the registry come first."""
    found = {model.name: NamedModel(model.path) for model in reversed(stored_models())}
    for name in Registry().presets:
        path = locate(name, None)
        if path.exists():
            found[name] = NamedModel(path, preset_of(name))
    return found
