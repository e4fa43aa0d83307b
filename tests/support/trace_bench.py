"""Trace a single operation whose inputs are rows of random tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from chosen_kernels import threads_of
from quire._native import graph
from quire._native.core import Device, Tensor, find_device
from quire._native.graph import Executor, Tracer, TraceTensor, Weight

Array = npt.NDArray[np.float32]
N_VOCAB = 24


@dataclass
class Bench:
    """A trace whose inputs are rows of random tables, with the numbers of its values."""

    seed: int = 1
    tracer: Tracer = field(default_factory=lambda: Tracer([]))
    keep: list[object] = field(default_factory=list)
    device: Device = field(default_factory=lambda: find_device("cpu"))

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.tokens = self.random.integers(0, N_VOCAB, 7).astype(np.int32)

    def array(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
        return self.random.uniform(low, high, shape).astype(np.float32)

    def weight(self, values: Array) -> Weight:
        tensor = Tensor.from_numpy(values).to(self.device)
        self.keep.append((values, tensor))
        return Weight(f"weight{len(self.keep)}", tensor)

    def value(self, *shape: int) -> tuple[TraceTensor, Array]:
        """Return a traced value of shape ``[rows, *shape]``, and its numbers."""
        n = int(np.prod(shape))
        table = self.array(N_VOCAB, n)
        traced = graph.embed(self.tracer.tokens, self.weight(table))
        return graph.reshape(traced, list(shape)), table[self.tokens].reshape(-1, *shape)

    def run(self, y: TraceTensor, kernels: str, axes: Sequence[int] = ()) -> Array:
        n = int(np.prod([int(d) for d in y.shape[1:]]))
        flat = graph.reshape(y, [n])
        trace = self.tracer.finish(graph.select_rows(flat, self.tracer.logit_rows))
        executor = Executor(
            trace, find_device("cpu"), n_blocks=2, threads=threads_of(kernels), kernels=kernels, max_rows=16
        )  # type: ignore[arg-type]
        rows = len(self.tokens)
        out = executor.run(
            self.tokens.tolist(),
            positions=list(range(rows)),
            slots=[],
            logit_rows=list(range(rows)),
            row_begin=[0, rows],
            n_kv=[rows],
            tables=[],
            axes=axes,
        )
        return out.reshape(rows, *[int(d) for d in y.shape[1:]])
