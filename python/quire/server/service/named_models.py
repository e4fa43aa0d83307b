"""The models of this machine's stores, and the names of the registry, for a server that serves all of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import LoadError
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
    stored = stored_models()
    found = {model.name: NamedModel(model.path) for model in reversed(stored)}
    for name in Registry().presets:
        with suppress(LoadError):  # a folder without a model: whoever asks for it by the command line is told
            path = locate(name, None, stored)
            if path.exists():
                found[name] = NamedModel(path, preset_of(name))
    return found
