"""Models as files: which a folder has, how large they are, and what memory they may take."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from ...errors import UnsupportedError
from ...hub.names import is_adapter_folder
from ...system import machine_memory_bytes

__all__ = ["find_models", "memory_bytes", "size_of", "skipped_models"]

_LATER_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_SHARE_OF_MEMORY = 0.75
_MODEL_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pth")
# The key general.type of a GGUF file, its type (a string), its length, and its value.
_ADAPTER_KEY = b"general.type" + (8).to_bytes(4, "little") + (7).to_bytes(8, "little") + b"adapter"
_FIRST_BYTES = 4096  # where programs write that key


def find_models(folder: Path) -> dict[str, Path]:
    """Models in a folder by name: GGUF files (of a split one, the first part) and checkpoint folders.

    What a link leads to beyond the folder is none of it, nor are adapters.
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
        elif entry.is_dir() and (path / "config.json").is_file() and not _is_adapter(path):
            found[path.name] = path
    return found


def skipped_models(folder: Path) -> dict[str, str]:
    """What looks like a model in a folder and is none that ``find_models`` finds, with why."""
    found, inside = set(find_models(folder).values()), folder.resolve()
    skipped: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        part = _LATER_PART.search(path.stem)
        if path in found or not (path.is_dir() or path.suffix in _MODEL_SUFFIXES):
            continue
        if not path.resolve().is_relative_to(inside):
            skipped[path.name] = "it is a link to outside of the folder"
        elif _is_adapter(path):
            skipped[path.name] = "it is a LoRA adapter: --lora, or ADAPTER of a Modelfile, names it beside its model"
        elif path.is_dir():
            if any(each.suffix in _MODEL_SUFFIXES for each in path.iterdir()):
                skipped[path.name] = "models in folders are found where there is a config.json"
        elif not path.exists():
            skipped[path.name] = "it is a link to nothing"
        elif path.suffix != ".gguf":
            skipped[path.name] = "it is no .gguf file: quire convert makes one of a checkpoint's folder"
        elif part is not None and _LATER_PART.sub("", path.stem) not in {_LATER_PART.sub("", p.stem) for p in found}:
            skipped[path.name] = "its first part is not there"
    return skipped


def _is_adapter(path: Path) -> bool:
    """Whether a file or folder is a LoRA adapter's, by its first bytes or its names."""
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
    """Of a file as it was at that time: folders are looked through at each request of a name that is not known."""
    with path.open("rb") as file:
        return _ADAPTER_KEY in file.read(_FIRST_BYTES)


def size_of(path: Path) -> int:
    """Bytes of a model's files."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    part = _LATER_PART.search(path.stem)
    if part is None:
        return path.stat().st_size
    first, last = int(part[1]), int(part[2])
    name, size = path.stem[: part.start()], 0
    for number in range(first, last + 1):
        with_number = path.with_name(f"{name}-{number:05}-of-{last:05}.gguf")
        if not with_number.exists():  # one that is opened is refused by its name
            break
        size += with_number.stat().st_size
    return size


def memory_bytes() -> int:
    """Memory that models may take unless an option says otherwise: three quarters of the machine's."""
    found = machine_memory_bytes()
    if found is None:
        raise UnsupportedError(
            "[serve] the machine's memory must be known but the system does not tell: give --memory-budget"
        )
    return int(found * _SHARE_OF_MEMORY)
