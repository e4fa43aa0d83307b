"""Files with what the cache has of saved sessions and slots, so that restoring them need not compute them again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._native import __version__
from ...engine.loading.cache_identity import files_digest
from ...engine.loading.loader import packaged_model
from ...errors import QuireError

if TYPE_CHECKING:
    from ...engine.engine import Engine, EngineRequest
    from ...engine.llm_base import LLMBase

__all__ = ["SavedBlocks"]

# Options that only say where and when something runs.  Any other difference is a miss.
_NEUTRAL = frozenset(("threads", "memory_bytes", "step_s", "cache_disk", "cache_disk_size", "cache_ram"))


class SavedBlocks:
    """``request_of`` builds a request from a history, its options and salt, as for ``Pins``."""

    def __init__(
        self,
        model: LLMBase,
        engine: Engine,
        request_of: Callable[[dict[str, Any], dict[str, Any], bytes], EngineRequest],
    ) -> None:
        self._model, self._engine, self._request_of = model, engine, request_of
        self._identity: bytes | None = None

    def verbs(self) -> Mapping[str, Callable[..., object]]:
        """Return the verbs of ``wire.Ask``."""
        return {"save_blocks": self._save, "restore_blocks": self._restore}

    def _save(self, path: str, history: dict[str, Any], options: dict[str, Any], salt: bytes) -> object:
        """Write the blocks of a history, or remove those that an older one left there."""
        with suppress(QuireError, OSError):
            request = self._request_of(history, options, salt)
            if request.media is None and self._has_own_weights():
                Path(path).parent.mkdir(exist_ok=True, mode=0o700)
                decoder = self._engine.decoder()
                n = decoder.export_prefix(request.token_ids, path, salt=salt, model=self._name(path))
                return {"n_tokens": n}
        with suppress(OSError):
            Path(path).unlink()
        return {"n_tokens": 0}

    def _restore(self, path: str, history: dict[str, Any], options: dict[str, Any], salt: bytes) -> object:
        """Load the blocks of a history into the cache; return how many of its tokens are there now."""
        with suppress(QuireError, OSError):
            if Path(path).is_file() and self._has_own_weights():
                request = self._request_of(history, options, salt)
                decoder = self._engine.decoder()
                n = decoder.import_prefix(request.token_ids, path, salt=salt, model=self._name(path))
                return {"n_tokens": n}
        return {"n_tokens": 0}

    def _name(self, path: str) -> bytes:
        """Return the model's name in files.  The first call reads the model's files, unless their digests are known."""
        if self._identity is None:
            self._identity = _identity(self._model, Path(path).parent / "digests")
        return self._identity

    def _has_own_weights(self) -> bool:
        return self._model._controls.source is None


def _identity(model: LLMBase, known: Path) -> bytes:
    """Return a digest of all that cached rows depend on.  ``known``: where digests of files are kept."""
    digest = hashlib.blake2b(digest_size=32, person=b"quire.saved.kv")
    config = [(each.name, getattr(model.config, each.name)) for each in fields(model.config)]
    shown = [(name, value) for name, value in config if name not in _NEUTRAL]
    path = model.path or packaged_model()
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    files += [Path(adapter) for adapter, _ in model.config.adapters if Path(adapter).is_file()]
    parts = (__version__, model.isa, model.n_ctx, model.kv_dtype, shown, files_digest(files, known))
    digest.update(repr(parts).encode())
    return digest.digest()
