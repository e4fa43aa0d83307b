"""llama-cpp-python's prompt caches, which have no effect: Quire's prefix cache is always on."""

from __future__ import annotations

__all__ = ["LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]


class LlamaRAMCache:
    """A cache in memory.  The engine decides its size."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes


LlamaCache = LlamaRAMCache


class LlamaDiskCache(LlamaRAMCache):
    """A cache on disk, which is in memory here."""

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self.cache_dir = cache_dir
