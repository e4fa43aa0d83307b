"""Delete models from the hub's cache, but not from the stores of other programs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ..errors import UnsupportedError
from .choose import is_model_file
from .stores import StoredModel

__all__ = ["remove_stored"]

_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")
_OWNERS = {
    "ollama": "Ollama's store: use ollama rm",
    "lm-studio": "LM Studio's store: delete it there",
    "llama.cpp": "llama.cpp's cache: delete the file",
}


def remove_stored(model: StoredModel) -> int:
    """Delete a model's files, and the whole repository folder if no other model is left in it; return the freed bytes.

    UnsupportedError for a model in another program's store.
    """
    if model.store != "hub":
        raise UnsupportedError(f"[rm] cannot delete {model.name}, which is in {_OWNERS[model.store]}")
    repository = next(parent for parent in model.path.parents if parent.name.startswith("models--"))
    if model.path.is_dir():
        freed = _size(repository)
        shutil.rmtree(repository)
        return freed
    before = _size(repository)
    part = _PART.search(model.path.name)
    parts = [model.path] if part is None else sorted(model.path.parent.glob(_PART.sub("-*-of-*", model.path.name)))
    for path in parts:
        blob = path.resolve()
        path.unlink()
        if blob != path and blob.is_relative_to(repository.resolve()) and not _is_used(repository, blob):
            blob.unlink(missing_ok=True)
    if not any(_is_model(path) for path in (repository / "snapshots").rglob("*")):
        shutil.rmtree(repository)
        return before
    return before - _size(repository)


def _is_model(path: Path) -> bool:
    return path.suffix == ".safetensors" or is_model_file(path.name)


def _is_used(repository: Path, blob: Path) -> bool:
    return any(path.resolve() == blob for path in (repository / "snapshots").rglob("*") if path.is_symlink())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
