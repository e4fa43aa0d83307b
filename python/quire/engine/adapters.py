"""The LoRA adapters of a running model, which requests choose by name."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ..errors import CapacityError, RequestError, UnsupportedError
from ..params.rules import LORA_SCALE_MAX, Float

if TYPE_CHECKING:
    from .._native.graph import Executor, LowRankAdapter
    from ..files.gguf import GGUFReader

__all__ = ["NO_LIBRARY", "AdapterInfo", "AdapterLibrary", "adapter_names"]

_MOST_NAME = 256  # characters
NO_LIBRARY = (
    "[adapter] unsupported adapters per request: the model runs in several processes, or on a device that has no"
    " products with a matrix per row (mul_mat_id)"
)


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter that requests may choose.

    ``scale``: what requests that choose no adapters add it with; 0: they do not.  ``rank``: the largest of its pairs;
    ``targets``: the matrices that it changes.  ``size_bytes``: of memory while it is loaded.
    """

    name: str
    path: str
    scale: float
    rank: int
    targets: tuple[str, ...]
    size_bytes: int
    is_loaded: bool


@dataclass
class _Entry:
    name: str
    path: str
    scale: float
    identity: bytes = b""
    rank: int = 0
    targets: tuple[str, ...] = ()
    invocation: tuple[int, ...] = ()
    size_bytes: int = 0
    native: LowRankAdapter | None = None
    used: int = 0  # when it was last used, by a count
    loading: threading.Lock = field(default_factory=threading.Lock)


class AdapterLibrary:
    """Reads adapters and keeps at most ``max_loras`` and ``max_bytes`` of them, the last used ones.  Thread-safe.

    An adapter that was dropped is read again from its file when a request needs it.  A request holds its adapters until
    it has ended, whatever happens to them here.
    """

    def __init__(
        self,
        executor: Executor,
        base: GGUFReader,
        products: Mapping[str, float],
        *,
        max_loras: int,
        max_bytes: int = 0,
        max_rank: int | None = None,
        generates: bool = True,
    ) -> None:
        """Keep adapters for the model of ``executor``.

        Args:
            executor: Runs the model.
            base: The model's file; tensors are read for adapters that need the model's own values.
            products: The matrices that adapters can change, with the factor of their products.
            max_loras: Adapters in memory.
            max_bytes: Their bytes, in host memory and on devices; 0: no limit.  Devices keep those that no step needs
                within half of it.
            max_rank: Refuse adapters of a larger rank.
            generates: Prompts have no encoder of their own.
        """
        self._generates = generates
        executor.keep_adapters_within(max_bytes // 2)
        self._executor, self._base, self._products = executor, base, products
        self._max_loras, self._max_bytes, self._max_rank = max_loras, max_bytes, max_rank
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._count = 0

    @property
    def infos(self) -> list[AdapterInfo]:
        """The adapters in the order in which they were added."""
        with self._lock:
            return [_info(entry) for entry in self._entries.values()]

    def add(self, path: str, name: str | None = None, scale: float = 0.0, *, replace: bool = False) -> AdapterInfo:
        """Read an adapter and return it.

        Args:
            path: A GGUF file or a PEFT folder.
            name: What requests call it; by default the name of its file or folder.
            scale: See ``AdapterInfo``.
            replace: Take the place of an adapter with that name.

        Raises:
            LoadError: The adapter is missing or malformed, or does not fit the model.
            UnsupportedError: It has something that Quire does not compute.
            RequestError: The name is taken or invalid, or the rank is too large.
            CapacityError: It alone exceeds ``max_bytes``.
        """
        chosen = self._new_name(path) if name is None else _checked_name(name)
        entry = _Entry(chosen, path, _checked_scale(scale))
        if not replace and entry.name in self._entries:
            raise RequestError(f"[adapter] an adapter named {entry.name!r:.80} is loaded already: choose another name")
        entry.native = self._read(entry)
        with self._lock:
            if not replace and entry.name in self._entries:
                raise RequestError(f"[adapter] an adapter named {entry.name!r:.80} is loaded already")
            self._entries[entry.name] = entry
            self._use(entry)
            self._drop_oldest({entry.name})
            return _info(entry)

    def remove(self, name: str) -> None:
        """Forget an adapter; requests that run with it go on.  RequestError if there is none of that name."""
        with self._lock:
            self._known(name)
            del self._entries[name]

    def set_scales(self, scales: Mapping[str, float]) -> None:
        """Set the scales for requests that choose no adapters.  RequestError for those beyond 100 or -100."""
        with self._lock:
            entries = [(self._known(name), _checked_scale(scale)) for name, scale in scales.items()]
            for entry, scale in entries:
                entry.scale = scale

    def chosen(
        self, choice: Sequence[tuple[str, float]] | None, token_ids: Sequence[int] = ()
    ) -> list[tuple[LowRankAdapter, float, int]]:
        """Return the adapters of a request with their scales and the first position that each changes.

        They are read again if necessary.  An adapter with invocation tokens begins with the last of them in the prompt,
        and is left out if there are none.

        Args:
            choice: Names with scales; None: those that apply by default.
            token_ids: The prompt.

        Raises:
            RequestError: An adapter is not known.
            LoadError: Its file is gone, or has changed since it was added.
        """
        with self._lock:
            if choice is None:
                choice = [(entry.name, entry.scale) for entry in self._entries.values()]
            entries = [(self._known(name), scale) for name, scale in choice if scale != 0]
            names = {entry.name for entry, _ in entries}
            if len(names) > self._max_loras:
                raise CapacityError(f"[adapter] a request has {len(names)} adapters: at most {self._max_loras} fit")
            size_bytes = sum(entry.size_bytes for entry, _ in entries)
            if 0 < self._max_bytes < size_bytes:
                raise CapacityError(
                    f"[adapter] a request's adapters take {size_bytes} bytes: at most {self._max_bytes} fit"
                )
            for entry, _ in entries:
                self._use(entry)
            self._drop_oldest(names)  # copies on devices may have grown
        found = [(self._native(entry, names), scale, entry.invocation) for entry, scale in entries]
        begun = [(native, scale, _last_of(invocation, token_ids)) for native, scale, invocation in found]
        return [(native, scale, first) for native, scale, first in begun if first is not None]

    def close(self) -> None:
        """Forget all adapters."""
        with self._lock:
            self._entries.clear()

    def _known(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(list(self._entries)[:20]) or "none is loaded"
            raise RequestError(f"[adapter] no adapter named {name!r:.80} (available: {known})")
        return entry

    def _new_name(self, path: str) -> str:
        stem = (Path(path).name.removesuffix(".gguf") or "adapter")[:_MOST_NAME]
        names = [stem, *(f"{stem}-{i}" for i in range(2, 2 + len(self._entries)))]
        return next(name for name in names if name not in self._entries)

    def _use(self, entry: _Entry) -> None:
        self._count += 1
        entry.used = self._count

    def _drop_oldest(self, kept: set[str]) -> None:
        loaded = sorted((e for e in self._entries.values() if e.native is not None), key=lambda each: each.used)
        n, size_bytes = len(loaded), sum(entry.size_bytes for entry in loaded) + self._executor.adapter_bytes
        for entry in loaded:
            if n <= self._max_loras and not 0 < self._max_bytes < size_bytes:
                return
            if entry.name not in kept:
                entry.native = None
                n, size_bytes = n - 1, size_bytes - entry.size_bytes

    def _native(self, entry: _Entry, kept: set[str]) -> LowRankAdapter:
        if (native := entry.native) is not None:
            return native
        with entry.loading:
            if (native := entry.native) is None:
                native = self._read(entry)
            with self._lock:
                entry.native = native
                self._drop_oldest(kept)
        return native

    def _read(self, entry: _Entry) -> LowRankAdapter:
        from ..checkpoints.conversion import adapter_pairs

        found = adapter_pairs(entry.path, self._base, self._products)
        rank = max((pair.rank for pair in found.pairs), default=0)
        if found.invocation and not self._generates:
            raise UnsupportedError("[adapter] unsupported alora_invocation_tokens for a model that encodes its prompts")
        if self._max_rank is not None and rank > self._max_rank:
            raise RequestError(
                f"[adapter] {Path(entry.path).name} has rank {rank}: at most {self._max_rank} is allowed"
            )
        if entry.identity and found.identity != entry.identity:
            raise RequestError(f"[adapter] the file of adapter {entry.name!r:.80} has changed: load it again")
        native = self._executor.adapter(found.identity, found.tensors)
        if 0 < self._max_bytes < native.size_bytes:
            raise CapacityError(
                f"[adapter] {Path(entry.path).name} takes {native.size_bytes} bytes: at most {self._max_bytes} fit"
                " (lora_cache_size)"
            )
        entry.identity, entry.rank, entry.size_bytes = found.identity, rank, native.size_bytes
        entry.targets, entry.invocation = tuple(pair.name for pair in found.pairs), found.invocation
        return native


class _Names(TypedDict):
    adapter: bytes
    late_adapters: list[tuple[bytes, int]]


def adapter_names(
    library: AdapterLibrary | None, choice: Sequence[tuple[str, float]] | None, token_ids: Sequence[int]
) -> _Names:
    """Return the names of a request's adapters in the cache's hashes, as the decoder forms them."""
    chosen = [] if library is None else library.chosen(choice, token_ids)
    names = [(adapter.identity + struct.pack("=f", scale), first) for adapter, scale, first in chosen]
    return {
        "adapter": b"".join(name for name, first in names if first == 0),
        "late_adapters": [(name, first) for name, first in names if first > 0],
    }


def _info(entry: _Entry) -> AdapterInfo:
    return AdapterInfo(
        entry.name, entry.path, entry.scale, entry.rank, entry.targets, entry.size_bytes, entry.native is not None
    )


def _last_of(invocation: tuple[int, ...], token_ids: Sequence[int]) -> int | None:
    """Return where the last of the invocations in a prompt begins; 0 without an invocation, None if it is not there."""
    n = len(invocation)
    ends = range(len(token_ids) - n, -1, -1)
    return next((i for i in ends if tuple(token_ids[i : i + n]) == invocation), None) if n else 0


def _checked_scale(scale: float) -> float:
    return float(Float(-LORA_SCALE_MAX, LORA_SCALE_MAX).check("[adapter] scale", scale))  # type: ignore[arg-type]


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or not name.isprintable():
        raise RequestError(f"[adapter] {name!r:.80} is not a name: expected 1 to {_MOST_NAME} printable characters")
    return name
