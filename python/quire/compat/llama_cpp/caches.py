"""llama-cpp-python's caches of prompts: Quire's is always on, so these only say that one was asked for."""

from __future__ import annotations

__all__ = ["LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]


class LlamaRAMCache:
    """A cache in memory, of which the size is the engine's own."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes


LlamaCache = LlamaRAMCache


class LlamaDiskCache(LlamaRAMCache):
    """A cache on disk: here in memory, too."""

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self.cache_dir = cache_dir
