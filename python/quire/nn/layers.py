"""Layers with one weight: linear, norms, embedding."""

from __future__ import annotations

from dataclasses import dataclass

from .._native import graph, parallel
from .._native.graph import TraceTensor as Tensor
from .._native.graph import Weight


@dataclass(frozen=True)
class LowRank:
    """The product that an adapter adds: ``x [n, in]`` to ``factor * B (A x)`` ``[n, out]``."""

    a: Weight  # [rank, in]
    b: Weight  # [out, rank]
    factor: float

    def __call__(self, x: Tensor) -> Tensor:
        return graph.linear(graph.linear(x, self.a) * self.factor, self.b)

    def part(self, begin: int, end: int) -> LowRank:
        """Return the layer for outputs ``begin:end``."""
        return LowRank(self.a, self.b.part(begin, end), self.factor)


@dataclass(frozen=True)
class Linear:
    """A matrix product, ``x [n, in]`` to ``[n, out]``."""

    weight: Weight  # [out, in]
    bias: Weight | None = None  # [out]
    scale: float = 1.0  # a factor of the product, beside the scales in the weight itself (NVFP4)
    added: tuple[LowRank, ...] = ()  # from adapters
    summed: parallel.RankGroup | None = None  # ranks that have a part of the inputs each

    def __call__(self, x: Tensor) -> Tensor:
        y = self._product(x)
        for low_rank in self.added:
            y = y + low_rank(x)
        return y if self.summed is None else parallel.all_reduce(y, self.summed)

    def part(self, begin: int, end: int) -> Linear:
        """Return the layer for outputs ``begin:end``."""
        bias = self.bias.part(begin, end) if self.bias else None
        return Linear(
            self.weight.part(begin, end), bias, self.scale, tuple(low_rank.part(begin, end) for low_rank in self.added)
        )

    def _product(self, x: Tensor) -> Tensor:
        if self.scale == 1.0:
            return graph.linear(x, self.weight, self.bias)
        y = graph.linear(x, self.weight) * self.scale
        return y if self.bias is None else graph.add_weight(y, self.bias)


@dataclass(frozen=True)
class RMSNorm:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019)."""

    weight: Weight  # [dim]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return graph.rms_norm(x, self.weight, self.eps)


def unit_norm(x: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, without weights."""
    return graph.rms_norm(x, None, eps)


@dataclass(frozen=True)
class LayerNorm:
    """Mean and variance norm over the last dimension (Ba, Kiros and Hinton 2016)."""

    weight: Weight | None  # [dim]
    bias: Weight | None  # [dim]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return graph.layer_norm(x, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class Embedding:
    """A table of vectors: ids ``[tokens]`` to ``[tokens, dim]``."""

    weight: Weight  # [n_vocab, dim]

    def __call__(self, tokens: Tensor) -> Tensor:
        return graph.embed(tokens, self.weight)

    def as_head(self) -> Linear:
        """Return an output projection with this matrix (tied embeddings)."""
        return Linear(self.weight)
