"""Find the models that this machine already has, in the caches of Hugging Face, LM Studio, Ollama and llama.cpp."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..files.folders import is_checkpoint_folder
from .choose import is_model_file, matches_tag, quantization_of
from .names import HubName

__all__ = ["Store", "StoredModel", "find_stored", "hub_cache", "ollama_projector", "stored_models"]

Store = Literal["hub", "ollama", "lm-studio", "llama.cpp"]
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_PROJECTOR_LAYER = "application/vnd.ollama.image.projector"
_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
_USUAL_HOST, _USUAL_NAMESPACE = "registry.ollama.ai", "library"
_MOST_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredModel:
    """A model on this machine: its name, the file or folder to open, and the store it is in."""

    name: str
    path: Path
    store: Store
    size_bytes: int
    modified_s: float


def stored_models(environment: Mapping[str, str] | None = None) -> list[StoredModel]:
    """List all models, with a split one as its first part.  Unreadable entries are skipped."""
    env = os.environ if environment is None else environment
    found = [*_hub(env), *_ollama(env), *_lm_studio(env), *_llama_cpp(env)]
    return sorted(found, key=lambda model: (model.name.lower(), model.store))


def find_stored(wanted: str | HubName, models: Iterable[StoredModel] | None = None) -> StoredModel | None:
    """Return the model that a name refers to.

    A string is one of Ollama's names.  A repository may have several files here; Q4_K_M is preferred, then Q8_0.
    """
    known = stored_models() if models is None else list(models)
    if isinstance(wanted, str):
        full = wanted if ":" in wanted else f"{wanted}:latest"
        return next((model for model in known if model.store == "ollama" and model.name == full), None)
    repository = wanted.repository.lower()
    flat = repository.replace("/", "_") + "_"  # prefix of the repository's files in llama.cpp's cache
    fitting = [
        model
        for model in known
        if (
            _repository(model.name) == repository
            or (model.store == "llama.cpp" and model.name.lower().startswith(flat))
        )
        and _is_meant(model, wanted)
    ]
    order = ("Q4_K_M", "Q8_0")
    return min(
        fitting,
        key=lambda model: order.index(tag) if (tag := quantization_of(model.path.name)) in order else len(order),
        default=None,
    )


def _repository(name: str) -> str:
    return name.lower().removeprefix("hf.co/").partition(":")[0]


def _is_meant(model: StoredModel, wanted: HubName) -> bool:
    if wanted.file is not None:
        return model.path.as_posix().endswith(("/" + wanted.file, "_" + wanted.file))
    if wanted.revision is not None:
        return False  # stores do not reliably tell branches apart
    if wanted.tag is None or wanted.tag.lower() == "latest":
        return True
    return matches_tag(model.path.name, wanted.tag) or model.name.lower().endswith(f":{wanted.tag.lower()}")


# Hugging Face


def hub_cache(env: Mapping[str, str]) -> Path:
    """Return the folder where huggingface_hub keeps repositories, according to its environment variables."""
    if given := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    home = env.get("HF_HOME")
    return (Path(home).expanduser() if home else _cache_home(env) / "huggingface") / "hub"


def own_cache(env: Mapping[str, str]) -> Path:
    """Return the folder where Quire keeps what it can find out again."""
    return _cache_home(env) / "quire"


def _cache_home(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()


def _hub(env: Mapping[str, str]) -> Iterator[StoredModel]:
    for repository in _children(hub_cache(env)):
        parts = repository.name.split("--")
        if len(parts) != 3 or parts[0] != "models":
            continue
        name = "/".join(parts[1:])
        snapshot = _newest_snapshot(repository)
        if snapshot is not None:
            yield from _in_folder(name, snapshot, "hub")


def _newest_snapshot(repository: Path) -> Path | None:
    """Return the snapshot of branch main, else the newest one."""
    main = repository / "refs" / "main"
    try:
        commit = main.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = ""
    if re.fullmatch(r"[0-9a-f]{7,64}", commit) and (repository / "snapshots" / commit).is_dir():
        return repository / "snapshots" / commit
    return max(_children(repository / "snapshots"), key=lambda path: path.stat().st_mtime, default=None)


def _in_folder(name: str, folder: Path, store: Store) -> Iterator[StoredModel]:
    """Yield the models in a repository's folder: its GGUF files, or the folder itself for a checkpoint."""
    files = sorted(path for path in folder.rglob("*.gguf") if is_model_file(path.name))
    for path in files:
        part = _PART.search(path.name)
        if part is not None and int(part[1]) != 1:
            continue
        parts = [path] if part is None else sorted(path.parent.glob(_PART.sub("-*-of-*", path.name)))
        if part is not None and len(parts) != int(part[2]):
            continue  # incomplete download
        tag = quantization_of(path.name)
        yield from _stored(f"{name}:{tag}" if tag else name, path, store, parts)
    if not files and is_checkpoint_folder(folder) and (weights := sorted(folder.glob("*.safetensors"))):
        yield from _stored(name, folder, store, weights)


def _stored(name: str, path: Path, store: Store, parts: Iterable[Path]) -> Iterator[StoredModel]:
    try:
        states = [part.stat() for part in parts]  # follows symbolic links
    except OSError:
        return
    size, modified = sum(state.st_size for state in states), max(state.st_mtime for state in states)
    yield StoredModel(name, path, store, size, modified)


# LM Studio and llama.cpp


def _lm_studio(env: Mapping[str, str]) -> Iterator[StoredModel]:
    for root in (Path.home() / ".lmstudio" / "models", _cache_home(env) / "lm-studio" / "models"):
        for owner in _children(root):
            for repository in _children(owner):
                yield from _in_folder(f"{owner.name}/{repository.name}", repository, "lm-studio")


def _llama_cpp(env: Mapping[str, str]) -> Iterator[StoredModel]:
    given = env.get("LLAMA_CACHE")
    roots = [Path(given).expanduser()] if given else [_cache_home(env) / "llama.cpp"]
    for root in (*roots, *(() if given else (Path.home() / "Library" / "Caches" / "llama.cpp",))):
        try:
            files = sorted(root.glob("*.gguf"))
        except OSError:
            continue
        for path in files:
            part = _PART.search(path.name)
            if is_model_file(path.name) and (part is None or int(part[1]) == 1):
                # File names in this cache begin with the repository: org_name_file.gguf.
                yield from _stored(_PART.sub("", path.name).removesuffix(".gguf"), path, "llama.cpp", [path])


# Ollama


def _ollama(env: Mapping[str, str]) -> Iterator[StoredModel]:
    given = env.get("OLLAMA_MODELS")
    roots = [Path(given).expanduser()] if given else [
        Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models"),
    ]  # fmt: skip
    for root in roots:
        for host in _children(root / "manifests"):
            for namespace in _children(host):
                for model in _children(namespace):
                    for tag in _children(model, folders=False):
                        yield from _of_manifest(root, (host.name, namespace.name, model.name), tag)


def _of_manifest(root: Path, place: tuple[str, str, str], manifest: Path) -> Iterator[StoredModel]:
    host, namespace, model = place
    blob = _model_blob(root, manifest)
    if blob is None:
        return
    name = f"{model}:{manifest.name}" if namespace == _USUAL_NAMESPACE else f"{namespace}/{model}:{manifest.name}"
    yield from _stored(name if host == _USUAL_HOST else f"{host}/{name}", blob, "ollama", [blob])


def _model_blob(root: Path, manifest: Path) -> Path | None:
    return _layer_blob(root, manifest, _MODEL_LAYER)


def _layer_blob(root: Path, manifest: Path, kind: str) -> Path | None:
    """Return the first layer of a kind; None if there is none or the manifest cannot be read."""
    try:
        if manifest.stat().st_size > _MOST_MANIFEST_BYTES:
            return None
        found: Any = json.loads(manifest.read_bytes())
        layers = [layer for layer in found["layers"] if layer["mediaType"] == kind]
        digest = layers[0]["digest"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return None
    return root / "blobs" / digest.replace(":", "-")


def ollama_projector(model: Path) -> Path | None:
    """Return the projector that a manifest of Ollama's store names beside a model; None elsewhere, or without one."""
    root = model.parent.parent
    if model.parent.name != "blobs" or not (root / "manifests").is_dir():
        return None
    for manifest in sorted((root / "manifests").rglob("*")):
        if _layer_blob(root, manifest, _MODEL_LAYER) == model:
            blob = _layer_blob(root, manifest, _PROJECTOR_LAYER)
            if blob is not None and blob.is_file():
                return blob
    return None


def _children(folder: Path, *, folders: bool = True) -> list[Path]:
    """Return the folders (or files) in a folder, sorted; none if it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() == folders)
    except OSError:
        return []
