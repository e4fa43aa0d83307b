"""Find the encoder of a model: its ``mmproj`` file, or the folder of a checkpoint itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from .choose import part_free, quantization_of
from .stores import ollama_projector

__all__ = ["best_projector", "is_projector", "projector_of"]

_DIGITS = re.compile(r"\d+")


def is_projector(path: str) -> bool:
    """Return True for the name of an ``mmproj`` file."""
    name = path.rsplit("/", 1)[-1].lower()
    return name.endswith(".gguf") and "mmproj" in name


def best_projector(model: str, paths: Iterable[str]) -> str | None:
    """Return the ``mmproj`` file of a repository that belongs to a model's file; None if there is none.

    llama.cpp's rule: it lies in the model's folder or one above it, the nearer the better, and among several the one
    whose type has the most similar number of bits; the first of equals.
    """
    place = PurePosixPath(model).parent.parts
    bits = _bits(model)
    best: tuple[int, int] | None = None
    found = None
    for path in sorted(paths):
        folder = PurePosixPath(path).parent.parts
        if not is_projector(path) or path == model or folder != place[: len(folder)]:
            continue
        rank = (-len(folder), abs(_bits(path) - bits))
        if best is None or rank < best:
            best, found = rank, path
    return found


def _bits(path: str) -> int:
    """The first number in the name of a file's type: 4 for Q4_K_M, 16 for F16 and BF16; 0 without a type."""
    digits = _DIGITS.search(quantization_of(path) or "")
    return int(digits[0]) if digits else 0


def projector_of(model: Path) -> Path | None:
    """Return the encoder that lies with a model on this machine; None if there is none, or if it is not clear which.

    - For a checkpoint, its folder, which may hold an encoder or not.
    - In Ollama's store, the projector of the same manifest.
    - In a repository that Hugging Face's library or LM Studio downloaded, the one that llama.cpp would choose.
    - In llama.cpp's cache, the one whose name begins like the model's repository.
    - In any other folder, the only ``mmproj`` file.
    """
    if model.is_dir():
        return model
    stored = ollama_projector(model)
    if stored is not None:
        return stored
    root = _repository_root(model)
    if root is not None:
        paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*.gguf") if is_projector(path.name)}
        best = best_projector(model.relative_to(root).as_posix(), paths)
        return None if best is None else paths[best]
    beside = [path for path in _files(model.parent) if is_projector(path.name) and path != model]
    if len(beside) > 1:
        beside = _of_same_repository(model, beside)
    return beside[0] if len(beside) == 1 else None


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _repository_root(model: Path) -> Path | None:
    """Return the folder of a model's repository, with its subfolders, in the stores that keep one per repository."""
    parents = model.absolute().parents
    for i, parent in enumerate(parents):
        if parent.name == "snapshots" and i and parent.parent.name.startswith("models--"):
            return parents[i - 1]
        if parent.name == "models" and parent.parent.name in (".lmstudio", "lm-studio") and i >= 2:
            return parents[i - 2]
    return None


def _of_same_repository(model: Path, beside: list[Path]) -> list[Path]:
    """Return the files that share ``org_name_`` with the model, as in llama.cpp's cache, a folder for all models."""
    stem = part_free(model.name)
    sharing = {
        path: prefix
        for path in beside
        if (prefix := path.name[: path.name.lower().index("mmproj")]).count("_") >= 2 and stem.startswith(prefix)
    }
    most = max(map(len, sharing.values()), default=0)
    return [path for path, prefix in sharing.items() if len(prefix) == most]
