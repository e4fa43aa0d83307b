"""Which files of a repository make the model that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import CapacityError, LoadError
from .names import HubName

__all__ = ["Choice", "RepositoryFile", "choose", "is_model_file", "matches_tag", "quantization_of"]

# What llama.cpp takes where no quantization is named, in this order; then the first file.
_USUAL = ("Q4_K_M", "Q8_0")
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_NO_MODEL = re.compile(r"(^|[-_.])(mmproj|imatrix|mtp|eagle3|dflash|dspark)([-_.]|$)", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))(?=[-.]|$)", re.IGNORECASE
)
# A checkpoint as transformers has it: what a folder must have to be opened.
_CHECKPOINT = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|quantize_config|quant_config"
    r"|model\.safetensors\.index)\.json|merges\.txt|vocab\.txt|.*\.model|.*\.jinja|[^/]*\.safetensors"
)


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository.  ``sha256``: None where the hub does not tell it."""

    path: str
    size_bytes: int = 0
    sha256: str | None = None


@dataclass(frozen=True)
class Choice:
    """The files of a model, the first of which is opened; of a checkpoint, their folder is (``is_folder``)."""

    files: tuple[RepositoryFile, ...]
    quantization: str | None = None
    is_folder: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def is_model_file(path: str) -> bool:
    """Whether a file holds a model's weights, and not what belongs to one."""
    name = path.rsplit("/", 1)[-1]
    return name.lower().endswith(".gguf") and _NO_MODEL.search(name[: -len(".gguf")]) is None


def quantization_of(path: str) -> str | None:
    """The quantization that a file's name tells: ``Q4_K_M``; the last one where there are several."""
    found = _QUANTIZATION.findall(_PART.sub("", path))
    return found[-1].upper() if found else None


def matches_tag(path: str, tag: str) -> bool:
    """Whether a file's name has a tag as one of its parts, in any case."""
    return re.search(rf"(^|[-._/]){re.escape(tag)}(?=[-./]|$)", _PART.sub("", path), re.IGNORECASE) is not None


def choose(name: HubName, files: Sequence[RepositoryFile], memory_bytes: int | None) -> Choice:
    """The files of the model that a name means.

    Where it names no quantization, llama.cpp's order decides among those that fit into ``memory_bytes`` (None: any);
    where its first does not, the largest that does.  LoadError for what the repository does not have, CapacityError
    where nothing fits.
    """
    models = _grouped([file for file in files if is_model_file(file.path)])
    if name.file is not None:
        return _named(name, files, models)
    if not models:
        return _checkpoint(name, files, memory_bytes)
    if name.tag is not None and name.tag.lower() != "latest":
        found = [choice for choice in models if matches_tag(choice.files[0].path, name.tag)]
        if not found:
            raise LoadError(f"[hub] {name} must be a quantization of {name.repository} but there are {_tags(models)}")
        return min(found, key=lambda choice: len(choice.files[0].path))
    fits = _fitting(memory_bytes)
    for tag in _USUAL:
        for choice in models:
            if choice.quantization == tag:
                if fits(choice):
                    return choice
                return _largest(name, models, memory_bytes)
    return models[0] if fits(models[0]) else _largest(name, models, memory_bytes)


def _fitting(memory_bytes: int | None) -> Callable[[Choice], bool]:
    # Beside the weights there must be room for a cache.
    return lambda choice: memory_bytes is None or choice.size_bytes * 1.1 < memory_bytes


def _largest(name: HubName, models: Sequence[Choice], memory_bytes: int | None) -> Choice:
    fitting = [choice for choice in models if _fitting(memory_bytes)(choice)]
    if not fitting:
        assert memory_bytes is not None
        least = min(choice.size_bytes for choice in models)
        raise CapacityError(
            f"[hub] the smallest file of {name.repository} must fit into the {memory_bytes >> 20} MiB at hand but has "
            f"{least >> 20} MiB (name a quantization to have it all the same: {_tags(models)})"
        )
    return max(fitting, key=lambda choice: choice.size_bytes)


def _grouped(files: Sequence[RepositoryFile]) -> list[Choice]:
    """One choice for each model: parts of a split one together, in order."""
    groups: dict[str, list[RepositoryFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        groups.setdefault(_PART.sub("", file.path), []).append(file)
    return [Choice(tuple(parts), quantization_of(parts[0].path)) for parts in groups.values() if _complete(parts)]


def _complete(parts: Sequence[RepositoryFile]) -> bool:
    found = _PART.search(parts[0].path)
    return found is None or len(parts) == int(found[2])


def _named(name: HubName, files: Sequence[RepositoryFile], models: Sequence[Choice]) -> Choice:
    for choice in models:
        if name.file in {file.path for file in choice.files}:
            return choice
    for file in files:
        if file.path == name.file:
            return Choice((file,), quantization_of(file.path))
    shown = ", ".join(choice.files[0].path for choice in models[:20]) or "none"
    raise LoadError(f"[hub] {name.file} must be a file of {name.repository} but its models are {shown}")


def _checkpoint(name: HubName, files: Sequence[RepositoryFile], memory_bytes: int | None) -> Choice:
    wanted = tuple(file for file in files if _CHECKPOINT.fullmatch(file.path))
    names = {file.path for file in wanted}
    if "config.json" not in names or not any(path.endswith(".safetensors") for path in names):
        raise LoadError(
            f"[hub] {name.repository} must have a .gguf file, or config.json and .safetensors, but has none"
        )
    if name.tag is not None and name.tag.lower() != "latest":
        raise LoadError(
            f"[hub] {name} must be a quantization of {name.repository} but that is a checkpoint without any"
        )
    choice = Choice(tuple(sorted(wanted, key=lambda file: file.path != "config.json")), is_folder=True)
    if not _fitting(memory_bytes)(choice):
        raise CapacityError(
            f"[hub] {name.repository} must fit into the memory at hand but has {choice.size_bytes >> 20} MiB: "
            "a repository of quantized .gguf files may"
        )
    return choice


def _tags(models: Sequence[Choice]) -> str:
    return ", ".join(dict.fromkeys(choice.quantization or choice.files[0].path for choice in models))
