"""All models in this machine's stores and all names in the registry, for a server that serves all of them."""

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
    """A model file or folder, and its preset if the name is from the registry."""

    path: Path
    preset: Preset | None = None


def named_models() -> dict[str, NamedModel]:
    """Return all models on this machine by name; names of the registry take precedence."""
    stored = stored_models()
    found = {model.name: NamedModel(model.path) for model in reversed(stored)}
    for name in Registry().presets:
        with suppress(LoadError):  # a folder without a model: the command line reports it
            path = locate(name, None, stored)
            if path.exists():
                found[name] = NamedModel(path, preset_of(name))
    return found
