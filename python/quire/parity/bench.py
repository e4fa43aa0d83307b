"""A traced operation whose inputs are rows of random tables, on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from .._native import graph
from .._native.core import Tensor
from .._native.graph import CacheSpec, Executor, Trace, Tracer, TraceTensor, Weight
from .._native.quant import quantize

if TYPE_CHECKING:
    from .._native.core import Device

Array = npt.NDArray[np.float32]
N_VOCAB, N_ROWS = 32, 7


class Bench:
    """The same numbers on every device: they follow from the seed and the order in which they are asked for."""

    def __init__(self, device: Device, cache: Sequence[CacheSpec] = (), seed: int = 1) -> None:
        self.device = device
        self.cache = list(cache)
        self.tracer = Tracer(self.cache)
        self._random = np.random.default_rng(seed)
        self._tokens = self._random.integers(0, N_VOCAB, N_ROWS).tolist()
        self._n_weights = 0
        self._encoder: Trace | None = None

    def array(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
        return self._random.uniform(low, high, shape).astype(np.float32)

    def weight(self, *shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "f32") -> Weight:
        """Random numbers between ``low`` and ``high``."""
        values = self.array(*shape, low=low, high=high)
        tensor = Tensor.from_numpy(values)
        if dtype != "f32":
            tensor = quantize(values.reshape(-1, shape[-1]), dtype)
            if len(shape) != 2:
                tensor = Tensor.from_numpy(tensor.numpy().reshape(*shape[:-1], -1), dtype)
        self._n_weights += 1
        return Weight(f"weight{self._n_weights}", tensor.to(self.device))

    def value(self, *shape: int, low: float = -2.0, high: float = 2.0) -> TraceTensor:
        """A traced value of that shape behind the rows."""
        table = self.weight(N_VOCAB, int(np.prod(shape)), low=low, high=high)
        return graph.reshape(graph.embed(self.tracer.tokens, table), list(shape))

    def encode(self, write: Callable[[Bench], TraceTensor]) -> None:
        """What writes the rows of a source, and a value of its own; the rows of ``run`` are the source as well."""
        encoder = Bench(self.device, self.cache, seed=2)
        flat = write(encoder).merge_heads()
        self._encoder = encoder.tracer.finish_vectors(graph.select_rows(flat, encoder.tracer.logit_rows))

    def run(self, y: TraceTensor, kernels: Literal["stock", "cpu"] = "stock") -> Array:
        """The numbers of every row."""
        n = int(np.prod([int(d) for d in y.shape[1:]]))
        flat = y if len(y.shape) == 2 else graph.reshape(y, [n])
        trace = self.tracer.finish(graph.select_rows(flat, self.tracer.logit_rows), encoder=self._encoder)
        has_rows, has_state = any(c.n_kv_head for c in self.cache), any(c.states for c in self.cache)
        executor = Executor(
            trace, self.device, n_blocks=2, n_states=2 if has_state else 0, threads=1, kernels=kernels, max_rows=16,
            max_sequences=1,
        )  # fmt: skip
        rows, has_source = list(range(N_ROWS)), self._encoder is not None
        slots = [32 + p for p in rows] if has_rows else []
        if has_source:
            executor.encode(self._tokens, slots=slots, row_begin=[0, N_ROWS], tables=[[1]])
        return executor.run(
            self._tokens, positions=rows, slots=slots, logit_rows=rows, row_begin=[0, N_ROWS], n_kv=[N_ROWS],
            tables=[[1]] if has_rows else [], states=[1] if has_state else [],
            source_tables=[[1]] if has_source else [], n_source=[N_ROWS] if has_source else [],
        )  # fmt: skip
