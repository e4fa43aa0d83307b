"""Model files: which ones a folder has, how large they are, and how much memory they may use."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from ...errors import UnsupportedError
from ...files.folders import is_checkpoint_folder
from ...hub.names import is_adapter_folder
from ...system import machine_memory_bytes

__all__ = ["find_models", "memory_bytes", "size_of", "skipped_models"]

_LATER_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_SHARE_OF_MEMORY = 0.75
_MODEL_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pth")
# The key general.type of a GGUF file, its type (a string), its length and its value, as bytes.
_ADAPTER_KEY = b"general.type" + (8).to_bytes(4, "little") + (7).to_bytes(8, "little") + b"adapter"
_FIRST_BYTES = 4096  # programs write that key near the beginning


def find_models(folder: Path) -> dict[str, Path]:
    """Return the models in a folder by name: GGUF files (split ones by their first part) and checkpoint folders.

    Links to outside of the folder and adapters are left out.
    """
    found: dict[str, Path] = {}
    inside = folder.resolve()
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        path = folder / entry.name
        if entry.is_symlink() and not path.resolve().is_relative_to(inside):
            continue
        part = _LATER_PART.search(path.stem)
        if path.suffix == ".gguf" and entry.is_file():
            if (part is None or int(part[1]) == 1) and not _is_adapter(path):
                found[_LATER_PART.sub("", path.stem)] = path
        elif entry.is_dir() and is_checkpoint_folder(path) and not _is_adapter(path):
            found[path.name] = path
    return found


def skipped_models(folder: Path) -> dict[str, str]:
    """Return what looks like a model in a folder but is not one for ``find_models``, with the reason."""
    found, inside = set(find_models(folder).values()), folder.resolve()
    skipped: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        part = _LATER_PART.search(path.stem)
        if path in found or not (path.is_dir() or path.suffix in _MODEL_SUFFIXES):
            continue
        if not path.resolve().is_relative_to(inside):
            skipped[path.name] = "it links to outside of the folder"
        elif _is_adapter(path):
            skipped[path.name] = "it is a LoRA adapter: give it with --lora, or as ADAPTER in a Modelfile"
        elif path.is_dir():
            if any(each.suffix in _MODEL_SUFFIXES for each in path.iterdir()):
                skipped[path.name] = "the folder has no config.json"
        elif not path.exists():
            skipped[path.name] = "it is a broken link"
        elif path.suffix != ".gguf":
            skipped[path.name] = "it is not a .gguf file (quire convert makes one from a checkpoint folder)"
        elif part is not None and _LATER_PART.sub("", path.stem) not in {_LATER_PART.sub("", p.stem) for p in found}:
            skipped[path.name] = "its first part is missing"
    return skipped


def _is_adapter(path: Path) -> bool:
    """Return True for a LoRA adapter, by a file's first bytes or a folder's file names."""
    if path.is_dir():
        return is_adapter_folder(path)
    if path.suffix != ".gguf" or not path.is_file():
        return False
    try:
        status = path.stat()
        return _begins_as_adapter(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return False


@lru_cache(1 << 15)
def _begins_as_adapter(path: Path, mtime_ns: int, size: int) -> bool:
    """Check a file's first bytes, cached by its state: folders are scanned whenever an unknown model is requested."""
    with path.open("rb") as file:
        return _ADAPTER_KEY in file.read(_FIRST_BYTES)


def size_of(path: Path) -> int:
    """Return the bytes of a model's files."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    part = _LATER_PART.search(path.stem)
    if part is None:
        return path.stat().st_size
    first, last = int(part[1]), int(part[2])
    name, size = path.stem[: part.start()], 0
    for number in range(first, last + 1):
        with_number = path.with_name(f"{name}-{number:05}-of-{last:05}.gguf")
        if not with_number.exists():  # loading the model will report the missing part
            break
        size += with_number.stat().st_size
    return size


def memory_bytes() -> int:
    """Return the memory that models may use by default: three quarters of the machine's."""
    found = machine_memory_bytes()
    if found is None:
        raise UnsupportedError("[serve] cannot determine the machine's memory: give --memory-budget")
    return int(found * _SHARE_OF_MEMORY)
