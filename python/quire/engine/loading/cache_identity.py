"""Name everything that cached keys, values and states depend on, so that files of the cache are never mistaken.

The tokens, media and tenant are in the names of blocks already (native/kv/prefix_hash.h); types, layout and version of
the format are added by the decoder.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native import __version__
from ..._native.engine import CacheTiersConfig
from ...errors import LoadError
from ...params.engine_options import EngineConfig

if TYPE_CHECKING:
    from ..._native.kernels import KernelSet
    from ...files.gguf import GGUFReader
    from .fit import Fit

__all__ = ["cache_identity", "files_digest", "tiers_of", "trusted_folder"]

_DIGEST_BYTES, _PIECE_BYTES, _READ_BYTES = 32, 64 << 20, 1 << 20
_MOST_THREADS = 8
_YOUNG_S = 2.0
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
    digest = hashlib.blake2b(digest_size=32, person=b"quire.kv.model.2")

    def add(*parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            digest.update(len(data).to_bytes(8, "little") + data)

    add(__version__, None if kernel_set is None else kernel_set.isa, *devices)
    known = None if config.cache_disk is None else Path(config.cache_disk).expanduser() / "digests"
    add("weights", files_digest(reader.source_files, known) or os.urandom(32))
    add("media", None if media is None else files_digest(_files_in(media), known))
    for path, scale in config.adapters if merges_adapters else ():
        add("adapter", files_digest(_files_in(Path(path)), known), scale)
    for field in fields(config):
        if field.name not in _NEUTRAL:
            add(field.name, getattr(config, field.name))
    if fit is not None:
        add("places", sorted(fit.places.items()))
    if "rope_factors_long.weight" in reader:  # the context decides which factors are used
        add("n_ctx", n_ctx)
    return digest.digest()


def tiers_of(config: EngineConfig, ram_bytes: int, identity: Callable[[], bytes]) -> CacheTiersConfig:
    """Return the tiers below a model's cache.  ``identity``: as ``cache_identity``, which reads files."""
    return CacheTiersConfig(
        ram_bytes=ram_bytes,
        disk_folder="" if config.cache_disk is None else trusted_folder(config.cache_disk),
        disk_bytes=config.cache_disk_size,
        model=os.urandom(32) if config.cache_disk is None else identity(),
    )


def files_digest(paths: Iterable[Path], known: Path | None = None) -> bytes:
    """Return a digest of the contents of files, the same on every machine; b"" of none.

    ``known``: a folder that keeps the digests of files, until they change, so that each is read once.
    """
    digest = hashlib.blake2b(digest_size=32)
    ordered = sorted(paths, key=lambda each: each.name)
    for path in ordered:
        digest.update(_kept_digest(path, known))
    return digest.digest() if ordered else b""


def _kept_digest(path: Path, known: Path | None) -> bytes:
    """Return the digest of a file, from ``known`` if it has not changed since."""
    info = path.stat()
    # Each write to a file updates its ctime, which programs cannot set.
    state = f"{info.st_dev} {info.st_ino} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"
    place = None if known is None else known / hashlib.blake2b(state.encode(), digest_size=32).hexdigest()
    if place is not None:
        with suppress(OSError, ValueError):
            kept = bytes.fromhex(place.read_text("ascii"))
            if len(kept) == _DIGEST_BYTES:
                return kept
    found = _content_digest(path, info.st_size)
    # A file that was written a moment ago may change again within the same tick of its times.
    if place is not None and max(info.st_mtime, info.st_ctime) + _YOUNG_S < time.time():
        with suppress(OSError):
            place.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the cache's, still for its user alone
            place.parent.mkdir(mode=0o700, exist_ok=True)
            beside = place.with_name(f"{place.name}.{os.getpid()}")
            beside.write_text(found.hex(), "ascii")
            beside.replace(place)
    return found


def _content_digest(path: Path, size: int) -> bytes:
    """Return a digest of a file's size and pieces, which several threads read."""

    def of_piece(begin: int) -> bytes:
        piece = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        with path.open("rb") as file:
            file.seek(begin)
            for at in range(begin, min(begin + _PIECE_BYTES, size), _READ_BYTES):
                piece.update(file.read(min(_READ_BYTES, begin + _PIECE_BYTES - at)))
        return piece.digest()

    whole = hashlib.blake2b(str(size).encode(), digest_size=_DIGEST_BYTES)
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        for each in pool.map(of_piece, range(0, size, _PIECE_BYTES)):
            whole.update(each)
    return whole.digest()


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
