"""Name everything that cached keys, values and states depend on, so that files of the cache are never mistaken.

The tokens, media and tenant are in the names of blocks already (native/kv/prefix_hash.h); types, layout and version of
the format are added by the decoder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native import __version__
from ...errors import LoadError
from ...params.engine_options import EngineConfig

if TYPE_CHECKING:
    from ..._native.kernels import KernelSet
    from ...files.gguf import GGUFReader
    from .fit import Fit

__all__ = ["cache_identity", "files_digest", "trusted_folder"]

_SAMPLES, _SAMPLE_BYTES, _END_BYTES = 64, 16 << 10, 1 << 20
# Options without an effect on the numbers of the cache, or whose effect is told below.  A new option counts.
_NEUTRAL = frozenset(
    {
        "device", "fit", "fit_target", "fit_ctx", "n_ctx", "threads", "cpu_mask", "kv_dtype", "n_blocks", "isa", "load",
        "packed_cache", "policy", "max_step_tokens", "max_sequences", "memory_bytes", "step_s", "snapshot_tokens",
        "mmproj", "draft", "speculation", "draft_max", "draft_min", "taps", "adapters", "cache_disk", "cache_disk_size",
        "cache_ram", "lora_modules", "max_loras", "lora_cache_size", "max_lora_rank",
    }
)  # fmt: skip


def cache_identity(
    reader: GGUFReader,
    config: EngineConfig,
    *,
    n_ctx: int,
    fit: Fit | None,
    kernel_set: KernelSet | None,
    devices: Iterable[str],
    media: Path | None,
    merges_adapters: bool,
) -> bytes:
    """Return a digest of the weights, adapters, encoders, options, kernels and devices.

    ``merges_adapters``: those of the options are a part of the model; the names of blocks tell those of requests.
    """
    digest = hashlib.blake2b(digest_size=32, person=b"quire.kv.model.1")

    def add(*parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            digest.update(len(data).to_bytes(8, "little") + data)

    add(__version__, None if kernel_set is None else kernel_set.isa, *devices)
    add("weights", files_digest(reader.source_files) or os.urandom(32))
    add("media", None if media is None else files_digest(_files_in(media)))
    for path, scale in config.adapters if merges_adapters else ():
        add("adapter", files_digest(_files_in(Path(path))), scale)
    for field in fields(config):
        if field.name not in _NEUTRAL:
            add(field.name, getattr(config, field.name))
    if fit is not None:
        add("places", sorted(fit.places.items()))
    if "rope_factors_long.weight" in reader:  # the context decides which factors are used
        add("n_ctx", n_ctx)
    return digest.digest()


def files_digest(paths: Iterable[Path]) -> bytes:
    """Return a digest of files: sizes, times of modification, both ends and samples between them; b"" of none.

    Whoever edits a file changes its time; another file of the same size and time differs in the samples.
    """
    digest = hashlib.blake2b(digest_size=32)
    ordered = sorted(paths, key=lambda each: each.name)
    for path in ordered:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            digest.update(f"{info.st_size} {info.st_mtime_ns} ".encode())
            digest.update(file.read(_END_BYTES))
            step = max(info.st_size // _SAMPLES, _SAMPLE_BYTES)
            for begin in range(_END_BYTES, info.st_size - _END_BYTES, step):
                file.seek(begin)
                digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, info.st_size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return digest.digest() if ordered else b""


def trusted_folder(name: str) -> str:
    """Return the path of the cache's folder.  LoadError if another user owns it, who could then read and change it."""
    if not name:
        raise LoadError("[cache-disk] the name of the folder is empty")
    path = Path(name).expanduser()
    if hasattr(os, "geteuid") and path.exists() and path.stat().st_uid not in (0, os.geteuid()):
        raise LoadError(f"[cache-disk] {name} belongs to another user: use a folder of your own")
    return str(path)


def _files_in(path: Path) -> list[Path]:
    """Return a file, or those in a folder."""
    return [each for each in path.iterdir() if each.is_file()] if path.is_dir() else [path]
