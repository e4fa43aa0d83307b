"""What every architecture shares: the keys of a configuration, the protocol, tracing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..errors import LoadError
from ..gguf import Metadata
from ..nn import CacheSpec, Step, Tensor, Trace, Tracer, Weights

MAX_DIM = 1 << 20  # of any one dimension, so that products of a few stay far below 2^63


@dataclass(frozen=True)
class Config:
    """The keys that dense decoders have in common (``{arch}.*`` of the file), checked."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    dim: int
    ffn_dim: int
    eps: float

    @classmethod
    def read(cls, m: Metadata, arch: str, n_vocab: int) -> Config:
        """Raises LoadError naming the key that is absent, of another type or out of range."""
        n_head = m.integer(f"{arch}.attention.head_count", low=1, high=4096)
        dim = m.integer(f"{arch}.embedding_length", low=1, high=MAX_DIM)
        config = cls(
            arch=arch,
            n_vocab=n_vocab,
            n_ctx_train=m.integer(f"{arch}.context_length", low=1),
            n_layer=m.integer(f"{arch}.block_count", low=1, high=1024),
            n_head=n_head,
            n_kv_head=m.integer(f"{arch}.attention.head_count_kv", n_head, low=1, high=4096),
            head_dim=m.integer(f"{arch}.attention.key_length", max(1, dim // n_head), low=1, high=1024),
            dim=dim,
            ffn_dim=m.integer(f"{arch}.feed_forward_length", low=0, high=MAX_DIM),
            eps=m.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        )
        if config.n_head % config.n_kv_head:
            raise LoadError(
                f"[{arch}] head_count must be divisible by head_count_kv but they are {n_head} and {config.n_kv_head}"
            )
        if config.head_dim % 2:
            raise LoadError(f"[{arch}] the size of a head must be even but is {config.head_dim}")
        if m.integer(f"{arch}.attention.value_length", config.head_dim, high=1024) != config.head_dim:
            raise LoadError(f"[{arch}] key_length and value_length must be equal but are not")
        if m.integer(f"{arch}.rope.dimension_count", config.head_dim, high=1024) not in range(
            2, config.head_dim + 1, 2
        ):
            raise LoadError(f"[{arch}] rope.dimension_count must be even and at most {config.head_dim} but is not")
        if not 0 < config.eps < 1:
            raise LoadError(f"[{arch}] layer_norm_rms_epsilon must be between 0 and 1 but is {config.eps}")
        return config

    def cache(self) -> list[CacheSpec]:
        """All of the past in every layer."""
        return [CacheSpec(n_kv_head=self.n_kv_head, head_dim=self.head_dim)] * self.n_layer


class Model(Protocol):
    """An architecture: declares its weights, then spells the wiring."""

    def __init__(self, m: Metadata, w: Weights, n_vocab: int) -> None: ...

    @property
    def config(self) -> Config:
        """The sizes, read from the file."""

    def cache(self) -> list[CacheSpec]:
        """What each layer keeps per token."""

    def __call__(self, step: Step) -> Tensor:
        """Logits ``["rows", n_vocab]``."""


def trace(model: Model) -> Trace:
    """Record the forward pass, once."""
    tracer = Tracer(model.cache())
    return tracer.finish(model(Step(tracer)))
