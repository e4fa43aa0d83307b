"""From a name to the file or folder of its model, which is fetched where it is not on this machine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LoadError
from .choose import is_model_file
from .names import HubName, hub_name, is_adapter_folder, is_local_model
from .registry import Preset, Registry
from .short_names import SHORT_NAMES, nearest_name, short_name

if TYPE_CHECKING:
    from .stores import StoredModel

__all__ = ["found_model", "is_known_name", "is_named", "locate", "preset_of", "repository_of"]

_MOST_LINKS = 8


def preset_of(name: str) -> Preset | None:
    """The preset of a name in the registry, with those that its model's name stands for in turn under it."""
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
    """The repository that a name stands for: as it is written, or by the table of short names."""
    return hub_name(name) or short_name(name)


def is_known_name(name: str) -> bool:
    """Whether a word that is neither a path nor a repository is a model's name: of the registry, of the table of short
    names, or of Ollama's."""
    if not name or any(letter.isspace() for letter in name):
        return False
    if short_name(name) is not None or Registry().get(name) is not None:
        return True
    if ":" not in name:
        return False
    from .stores import find_stored

    return find_stored(name) is not None


def is_named(name: str) -> bool:
    """Return whether the registry or a store of this machine has a model of this name."""
    from .stores import stored_models

    return Registry().get(name) is not None or any(model.name == name for model in stored_models())


def locate(name: str, fetch: Callable[[HubName], Path] | None, models: Sequence[StoredModel] | None = None) -> Path:
    """The file or folder of a model.

    Args:
        fetch: Gets what is not on this machine (None: nothing does).
        models: Those of this machine's stores, where they are known already.

    A name that stands for nothing is a path, and whoever opens it tells that there is none.
    """
    preset = preset_of(name)
    name = name if preset is None else preset.model
    if is_local_model(name) or Path(name).expanduser().exists():
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
    if path.exists():
        return path
    if is_local_model(name) or os.sep in name:
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.gguf")], 1)
        raise LoadError(f"[loader] model file not found: {name}" + (f" (did you mean {near[0]}?)" if near else ""))
    raise LoadError(f"[loader] no such model: {name!r:.200} is neither a file or folder here{_known(name)}")


def _known(name: str) -> str:
    """The rest of the error message, with the names that exist."""
    first = name.partition(":")[0]
    sizes = SHORT_NAMES.get(first.lower())
    if sizes is not None:
        return f" nor a size of {first}: {', '.join(sizes)}"
    near = nearest_name(name)
    hint = "" if near is None else f"did you mean {near!r}? "
    return f" nor a known name: {hint}quire list shows the models of this machine, org/name is one of Hugging Face"


def _of_folder(path: Path) -> Path:
    """The model of a folder: the folder itself if it is a checkpoint, else its only GGUF file.

    LoadError, saying what is in the folder, if there is neither.
    """
    if not path.is_dir() or (path / "config.json").exists():
        return path
    files = sorted(each for each in path.glob("*.gguf") if is_model_file(each.name))
    # The first part of a split model stands for all of them.
    models = [each for each in files if "-of-" not in each.stem or "-00001-of-" in each.stem]
    if len(models) == 1:
        return models[0]
    if models:
        names = ", ".join(each.name for each in models[:8])
        raise LoadError(f"[loader] folder {path} has {len(models)} models: name one of {names}")
    if is_adapter_folder(path):
        return path
    raise LoadError(
        f"[loader] folder {path} has no model: neither a .gguf file nor config.json, which a checkpoint has beside its "
        ".safetensors"
    )
