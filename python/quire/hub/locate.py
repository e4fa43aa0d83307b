"""Resolve a name to a model's file or folder, downloading it if it is not on this machine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LoadError
from ..files.folders import is_checkpoint_folder
from .choose import is_model_file
from .names import HubName, hub_name, is_adapter_folder, is_local_model
from .registry import Preset, Registry
from .short_names import SHORT_NAMES, nearest_name, short_name

if TYPE_CHECKING:
    from .stores import StoredModel

__all__ = ["found_model", "is_known_name", "is_named", "locate", "preset_of", "repository_of"]

_MOST_LINKS = 8


def preset_of(name: str) -> Preset | None:
    """Return a name's preset in the registry, merged over the presets that its model's name refers to in turn."""
    registry = Registry()
    preset = None if is_local_model(name) else registry.get(name)
    for _ in range(_MOST_LINKS):
        below = None if preset is None or is_local_model(preset.model) else registry.get(preset.model)
        if preset is None or below is None:
            return preset
        preset = Preset(
            below.model,
            below.system if preset.system is None else preset.system,
            {**below.options, **preset.options},
            {**below.sampling, **preset.sampling},
            below.keep_alive if preset.keep_alive is None else preset.keep_alive,
        )
    return preset


def repository_of(name: str) -> HubName | None:
    """Return the repository that a name refers to, directly or through the table of short names."""
    return hub_name(name) or short_name(name)


def is_known_name(name: str) -> bool:
    """Return True if a word that is neither a path nor a repository names a model.

    It may be in the registry, in the table of short names, or in Ollama's store.
    """
    if not name or any(letter.isspace() for letter in name):
        return False
    if short_name(name) is not None or Registry().get(name) is not None:
        return True
    if ":" not in name:
        return False
    from .stores import find_stored

    return find_stored(name) is not None


def is_named(name: str) -> bool:
    """Return True if the registry or a store on this machine has a model of this name."""
    from .stores import stored_models

    return Registry().get(name) is not None or any(model.name == name for model in stored_models())


def locate(name: str, fetch: Callable[[HubName], Path] | None, models: Sequence[StoredModel] | None = None) -> Path:
    """Return the file or folder of a model.

    Args:
        fetch: Downloads a missing model; None never downloads.
        models: The models of this machine's stores, if already known.

    A name that refers to nothing is returned as a path, for the caller to find missing.
    """
    preset = preset_of(name)
    name = name if preset is None else preset.model
    if is_local_model(name) or os.path.exists(Path(name).expanduser()):  # false for what is too long for a path
        return _of_folder(Path(name).expanduser())
    from .stores import find_stored, stored_models

    models = stored_models() if models is None else models
    stored = find_stored(name, models)
    if stored is not None:
        return stored.path
    wanted = repository_of(name)
    if wanted is None:
        return Path(name)
    stored = find_stored(wanted, models)
    if stored is not None:
        return stored.path
    return Path(name) if fetch is None else fetch(wanted)


def found_model(name: str, fetch: Callable[[HubName], Path] | None) -> Path:
    """Locate a model that exists.  LoadError if there is none, naming similar ones."""
    path = locate(name, fetch)
    if os.path.exists(path):
        return path
    if is_local_model(name) or os.sep in name:
        others = [each.name for each in path.parent.glob("*.gguf")] if os.path.isdir(path.parent) else []
        near = difflib.get_close_matches(path.name, others, 1)
        raise LoadError(f"[loader] model file not found: {name:.500}" + (f" (did you mean {near[0]}?)" if near else ""))
    raise LoadError(f"[loader] no such model: {name!r:.200} is neither a file or folder{_known(name)}")


def _known(name: str) -> str:
    """Return the rest of the error message, which lists existing names."""
    first = name.partition(":")[0]
    sizes = SHORT_NAMES.get(first.lower())
    if sizes is not None:
        return f" nor a size of {first} (sizes: {', '.join(sizes)})"
    near = nearest_name(name)
    hint = "" if near is None else f"did you mean {near!r}? "
    return f" nor a known name ({hint}see quire list, or give org/name from Hugging Face)"


def _of_folder(path: Path) -> Path:
    """Return the model in a folder: the folder itself for a checkpoint, else its only GGUF file.

    LoadError listing the folder's models if there are none or several.
    """
    if not path.is_dir() or is_checkpoint_folder(path):
        return path
    files = sorted(each for each in path.glob("*.gguf") if is_model_file(each.name))
    # List a split model only by its first part.
    models = [each for each in files if "-of-" not in each.stem or "-00001-of-" in each.stem]
    if len(models) == 1:
        return models[0]
    if models:
        names = ", ".join(each.name for each in models[:8])
        raise LoadError(f"[loader] folder {path} has {len(models)} models (name one of {names})")
    if is_adapter_folder(path):
        return path
    raise LoadError(
        f"[loader] no model in folder {path}: neither a .gguf file nor a checkpoint (config.json or params.json "
        "with .safetensors)"
    )
