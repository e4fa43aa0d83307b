"""Choose the files of a repository that make up a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import CapacityError, LoadError
from .names import HubName

__all__ = ["Choice", "RepositoryFile", "choose", "is_model_file", "matches_tag", "part_free", "quantization_of"]

# llama.cpp's order of preference if no quantization is named; after these, the first file.
_USUAL = ("Q4_K_M", "Q8_0")
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_NO_MODEL = re.compile(r"(^|[-_.])(mmproj|imatrix|mtp|eagle3|dflash|dspark)([-_.]|$)", re.IGNORECASE)
_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))(?=[-.]|$)", re.IGNORECASE
)
# Files of a checkpoint in transformers' format that are needed to open it.
_CHECKPOINT = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|quantize_config|quant_config|preprocessor_config|processor_config|chat_template"
    r"|model\.safetensors\.index)\.json|merges\.txt|vocab\.txt|.*\.model|.*\.jinja|[^/]*\.safetensors"
    # Mistral's own form.
    r"|params\.json|tekken\.json|consolidated\.safetensors\.index\.json|tokenizer\.model\.v[0-9m]+"
)


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository.  ``sha256`` is None if the hub does not provide it."""

    path: str
    size_bytes: int = 0
    sha256: str | None = None


@dataclass(frozen=True)
class Choice:
    """The files of a model.  The first one is opened, or for a checkpoint (``is_folder``) their folder.

    ``projector``: the encoder of images and audio that belongs to the model.
    """

    files: tuple[RepositoryFile, ...]
    quantization: str | None = None
    is_folder: bool = False
    projector: RepositoryFile | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def part_free(path: str) -> str:
    """Return the name of a model's file without the number of its part."""
    return _PART.sub("", path)


def is_model_file(path: str) -> bool:
    """Return True for a file of model weights, False for files that only accompany a model."""
    name = path.rsplit("/", 1)[-1]
    return name.lower().endswith(".gguf") and _NO_MODEL.search(name[: -len(".gguf")]) is None


def quantization_of(path: str) -> str | None:
    """Return the quantization in a file's name, such as ``Q4_K_M``; the last one if there are several."""
    found = _QUANTIZATION.findall(_PART.sub("", path))
    return found[-1].upper() if found else None


def matches_tag(path: str, tag: str) -> bool:
    """Return True if a tag is one of the parts of a file's name, ignoring case."""
    return re.search(rf"(^|[-._/]){re.escape(tag)}(?=[-./]|$)", _PART.sub("", path), re.IGNORECASE) is not None


def choose(name: HubName, files: Sequence[RepositoryFile], memory_bytes: int | None) -> Choice:
    """Return the files of the model that a name refers to.

    If the name has no quantization, llama.cpp's preferred one is used if it fits in ``memory_bytes`` (None: no limit),
    else the largest that fits.  LoadError if the repository lacks what is asked for, CapacityError if nothing fits.
    """
    models = _grouped([file for file in files if is_model_file(file.path)])
    if name.file is not None:
        return _named(name, files, models)
    if not models:
        return _checkpoint(name, files, memory_bytes)
    if name.tag is not None and name.tag.lower() != "latest":
        found = [choice for choice in models if matches_tag(choice.files[0].path, name.tag)]
        if not found:
            raise LoadError(f"[hub] no such quantization: {name} ({name.repository} has {_tags(models)})")
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
    # Leave room for a cache besides the weights.
    return lambda choice: memory_bytes is None or choice.size_bytes * 1.1 < memory_bytes


def _largest(name: HubName, models: Sequence[Choice], memory_bytes: int | None) -> Choice:
    fitting = [choice for choice in models if _fitting(memory_bytes)(choice)]
    if not fitting:
        assert memory_bytes is not None
        least = min(choice.size_bytes for choice in models)
        raise CapacityError(
            f"[hub] the smallest file of {name.repository} has {least >> 20} MiB, too large for "
            f"{memory_bytes >> 20} MiB of memory (to download one anyway, name its quantization: {_tags(models)})"
        )
    return max(fitting, key=lambda choice: choice.size_bytes)


def _grouped(files: Sequence[RepositoryFile]) -> list[Choice]:
    """Return one choice per model, with the parts of a split model together and in order."""
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
    raise LoadError(f"[hub] no such file in {name.repository}: {name.file} (its models: {shown})")


def _checkpoint(name: HubName, files: Sequence[RepositoryFile], memory_bytes: int | None) -> Choice:
    wanted = _one_form([file for file in files if _CHECKPOINT.fullmatch(file.path)])
    names = {file.path for file in wanted}
    if not names & {"config.json", "params.json"} or not any(path.endswith(".safetensors") for path in names):
        raise LoadError(
            f"[hub] no model in {name.repository}: no .gguf file, and no .safetensors with config.json or params.json"
        )
    if name.tag is not None and name.tag.lower() != "latest":
        raise LoadError(f"[hub] no such quantization: {name} ({name.repository} is an unquantized checkpoint)")
    choice = Choice(tuple(sorted(wanted, key=lambda file: file.path != "config.json")), is_folder=True)
    if not _fitting(memory_bytes)(choice):
        raise CapacityError(
            f"[hub] {name.repository} has {choice.size_bytes >> 20} MiB, which does not fit in memory "
            "(try a repository of quantized .gguf files)"
        )
    return choice


def _one_form(files: Sequence[RepositoryFile]) -> tuple[RepositoryFile, ...]:
    """Leave out the weights in Mistral's form if a repository also has them in transformers'."""
    names = {file.path for file in files}
    has_both = "config.json" in names and any(re.fullmatch(r"model[^/]*\.safetensors", name) for name in names)
    return tuple(file for file in files if not has_both or not file.path.startswith("consolidated"))


def _tags(models: Sequence[Choice]) -> str:
    return ", ".join(dict.fromkeys(choice.quantization or choice.files[0].path for choice in models))
