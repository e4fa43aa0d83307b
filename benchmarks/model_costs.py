"""Compute the least cost of a model's tokens: bytes that must be read, multiplications and additions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quire import GGUFReader

__all__ = ["Costs", "Speeds", "Work"]

KV_BYTES = 2  # per number in an f16 cache


@dataclass(frozen=True)
class Work:
    """``n_streams`` sequences that generate after ``n_context`` tokens.

    ``n_generate`` 0 means reading these tokens.
    """

    n_context: int
    n_generate: int
    n_streams: int = 1
    shared: bool = False


class Speeds(NamedTuple):
    """Tokens per second of all streams together, for contexts and for answers; None if not measured."""

    reading: float | None = None
    writing: float | None = None

    def of(self, work: Work) -> float:
        speed = self.writing if work.n_generate else self.reading
        assert speed is not None
        return speed


@dataclass(frozen=True)
class Costs:
    """The costs of a dense model: bytes and elements of all matrices that a step reads, and its attention's shape."""

    weight_bytes: int
    n_elements: int
    n_head_elements: int
    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int

    @classmethod
    def of(cls, file: Path) -> Costs:
        reader = GGUFReader(file)
        meta, arch = reader.metadata, reader.metadata.text("general.architecture")
        n_head = meta.integer(f"{arch}.attention.head_count")
        tied = "output.weight" not in reader
        matrices = [
            info for info in reader.tensors if len(info.shape) == 2 and (tied or info.name != "token_embd.weight")
        ]
        head = reader.tensor_info("token_embd.weight" if tied else "output.weight")
        return cls(
            sum(info.size_bytes for info in matrices),
            sum(info.shape[0] * info.shape[1] for info in matrices),
            head.shape[0] * head.shape[1],
            meta.integer(f"{arch}.block_count"),
            n_head,
            meta.integer(f"{arch}.attention.head_count_kv", n_head),
            meta.integer(f"{arch}.attention.key_length", meta.integer(f"{arch}.embedding_length") // n_head),
        )

    def bytes_of_step(self, work: Work) -> float:
        """Return the bytes of all weights, and of the keys and values of each context; a shared context counts once."""
        contexts = 1 if work.shared else work.n_streams
        n_seen = work.n_context * contexts + work.n_generate / 2 * work.n_streams
        return self.weight_bytes + n_seen * 2 * self.n_layer * self.n_kv_head * self.head_dim * KV_BYTES

    def operations_of_reading(self, n_tokens: int) -> float:
        """Return the operations for a whole prompt, with causal attention and logits for its last token."""
        products = 2.0 * (self.n_elements - self.n_head_elements) * n_tokens + 2.0 * self.n_head_elements
        return products + 2.0 * self.n_layer * self.n_head * self.head_dim * float(n_tokens) ** 2

    def operations_of_step(self, work: Work) -> float:
        n_seen = work.n_context + work.n_generate / 2
        products = 2.0 * self.n_elements
        return work.n_streams * (products + 4.0 * self.n_layer * self.n_head * self.head_dim * n_seen)

    def best_speed(self, work: Work, bytes_per_s: float, operations_per_s: float) -> tuple[float, str]:
        """Return the tokens per second that this machine allows, and the limit: ``"bandwidth"`` or ``"peak"``."""
        if not work.n_generate:
            if not operations_per_s:
                return 0.0, "peak"
            return work.n_context * operations_per_s / self.operations_of_reading(work.n_context), "peak"
        reading = self.bytes_of_step(work) / bytes_per_s
        computing = self.operations_of_step(work) / operations_per_s if operations_per_s else 0.0
        return work.n_streams / max(reading, computing), "peak" if computing > reading else "bandwidth"
