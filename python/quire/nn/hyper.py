"""Hyper-connections (Zhu et al. 2024; Xie et al. 2026): several streams in place of one residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._native import graph
from .._native.graph import TraceTensor as Tensor
from .keys import Keys
from .layers import unit_norm
from .weights import Weights

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class HyperSizes:
    n: int  # streams
    dim: int  # numbers of each
    iterations: int  # how often sums of rows and columns are made 1
    eps: float
    norm_eps: float

    @classmethod
    def read(cls, keys: Keys, dim: int, norm_eps: float) -> HyperSizes:
        return cls(
            n=keys.integer("hyper_connection.count", low=1, high=64),
            dim=dim,
            iterations=keys.integer("hyper_connection.sinkhorn_iterations", low=1, high=1000),
            eps=keys.number("hyper_connection.epsilon"),
            norm_eps=norm_eps,
        )


class HyperConnection:
    """A layer's input is a mean of the streams, and its output is added to each of them, once they are mixed."""

    def __init__(self, weights: Weights, name: str, sizes: HyperSizes) -> None:
        n = 2 * sizes.n + sizes.n**2
        self.sizes, self.mixes = sizes, weights.linear(f"{name}_fn", sizes.n * sizes.dim, n)
        self.base = weights.tensor(f"{name}_base.weight", (n,), vector=True)
        self.scale = weights.tensor(f"{name}_scale.weight", (3,), vector=True)

    def __call__(self, x: Tensor, layer: Layer) -> Tensor:
        """Apply the layer to streams ``[tokens, n * dim]``."""
        sizes = self.sizes
        mixes = self.mixes(unit_norm(x, sizes.norm_eps))
        weights = graph.hyper_weights(
            mixes, self.scale, self.base, n=sizes.n, iterations=sizes.iterations, eps=sizes.eps
        )
        streams = x.heads(sizes.n)
        return graph.hyper_output(streams, layer(graph.hyper_input(streams, weights)), weights).merge_heads()


class HyperHead:
    """The mean of the streams ``[rows, n * dim]`` after the last layer."""

    def __init__(self, weights: Weights, name: str, sizes: HyperSizes) -> None:
        n = sizes.n
        self.sizes, self.mixes = sizes, weights.linear(f"{name}_fn", n * sizes.dim, n)
        self.base = weights.tensor(f"{name}_base.weight", (n,), vector=True)
        scale = weights.numbers(f"{name}_scale.weight", (1,))
        self.scale = weights.computed(f"{name}_scale.all", np.repeat(scale, n))
        self.eps = weights.computed(f"{name}_eps", np.full(n, sizes.eps, np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        sizes = self.sizes
        mixes = graph.multiply_weight(self.mixes(unit_norm(x, sizes.norm_eps)), self.scale)
        weights = graph.add_weight(graph.sigmoid(graph.add_weight(mixes, self.base)), self.eps)
        return graph.hyper_input(graph.reshape(x, [sizes.n, sizes.dim]), weights)
