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
N_VOCAB = 32
# (sequence, first row, end): steps of 40 rows, 1 and 7.  Devices have separate programs for one, few and many rows, and
# a step may leave wrong data for the next.
STEPS = (((0, 0, 23), (1, 0, 17)), ((0, 23, 24),), ((0, 24, 27), (1, 17, 21)))
N_TOKENS = 32  # tokens of a sequence, as many as a block
BLOCKS, FAR_BLOCK = (1, 2), 500  # the blocks of the two sequences


class Bench:
    """Makes inputs that are equal on every device: they depend on the seed and the order of calls."""

    def __init__(
        self, device: Device, cache: Sequence[CacheSpec] = (), seed: int = 1, blocks: tuple[int, int] = BLOCKS
    ) -> None:
        """``blocks``: of the sequences.  If they are far apart, attention copies them; if both are far from the start
        of the pool, it reads a stretch of the pool."""
        self.device = device
        self.cache = list(cache)
        self._blocks = blocks
        self.tracer = Tracer(self.cache)
        self._random = np.random.default_rng(seed)
        self._tokens = self._random.integers(0, N_VOCAB, (2, N_TOKENS)).tolist()
        self._n_weights = 0
        self._encoder: Trace | None = None

    def array(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
        return self._random.uniform(low, high, shape).astype(np.float32)

    def weight(self, *shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "f32") -> Weight:
        """Return random numbers between ``low`` and ``high`` as a weight on the CPU; a device gets copies."""
        values = self.array(*shape, low=low, high=high)
        tensor = Tensor.from_numpy(values)
        if dtype != "f32":
            tensor = quantize(values.reshape(-1, shape[-1]), dtype)
            if len(shape) != 2:
                tensor = Tensor.from_numpy(tensor.numpy().reshape(*shape[:-1], -1), dtype)
        self._n_weights += 1
        return Weight(f"weight{self._n_weights}", tensor)

    def value(self, *shape: int, low: float = -2.0, high: float = 2.0) -> TraceTensor:
        """Return a traced value with this shape per row."""
        table = self.weight(N_VOCAB, int(np.prod(shape)), low=low, high=high)
        return graph.reshape(graph.embed(self.tracer.tokens, table), list(shape))

    def encode(self, write: Callable[[Bench], TraceTensor]) -> None:
        """Set the function that writes the rows of a source and returns a value; ``run`` has the same source."""
        encoder = Bench(self.device, self.cache, seed=2, blocks=self._blocks)
        flat = write(encoder).merge_heads()
        self._encoder = encoder.tracer.finish_vectors(graph.select_rows(flat, encoder.tracer.logit_rows))

    def run(
        self, y: TraceTensor, kernels: Literal["stock", "cpu"] = "stock", ended: Callable[[], None] = lambda: None
    ) -> list[Array]:
        """Return the numbers of every row for each of ``STEPS``; ``ended`` is called after each."""
        n = int(np.prod([int(d) for d in y.shape[1:]]))
        flat = y if len(y.shape) == 2 else graph.reshape(y, [n])
        trace = self.tracer.finish(graph.select_rows(flat, self.tracer.logit_rows), encoder=self._encoder)
        has_rows, has_state = any(c.n_kv_head for c in self.cache), any(c.states for c in self.cache)
        executor = Executor(
            trace, self.device, n_blocks=self._blocks[-1] + 1, n_states=3 if has_state else 0, threads=1,
            kernels=kernels, max_rows=40, max_sequences=2,
        )  # fmt: skip
        n_source: list[int] = []
        if self._encoder is not None:
            n_source = [end for _, _, end in STEPS[0]]
            tokens, _, slots, row_begin = self._rows(STEPS[0])
            executor.encode(tokens, slots=slots, row_begin=row_begin, tables=[[block] for block in self._blocks])

        def step(parts: Sequence[tuple[int, int, int]]) -> Array:
            tokens, positions, slots, row_begin = self._rows(parts)
            tables = [[self._blocks[s]] for s, _, _ in parts]
            found = executor.run(
                tokens, positions=positions, slots=slots if has_rows else [], logit_rows=list(range(len(tokens))),
                row_begin=row_begin, n_kv=[end for _, _, end in parts],
                tables=tables if has_rows else [], states=[s + 1 for s, _, _ in parts] if has_state else [],
                source_tables=tables if n_source else [],
                n_source=[n_source[s] for s, _, _ in parts] if n_source else [],
            )  # fmt: skip
            ended()
            return found

        if has_rows or has_state:
            return [step(parts) for parts in STEPS]
        # Without a cache, a sequence has only the rows of this step.
        return [step([(s, 0, end - begin) for s, begin, end in parts]) for parts in STEPS]

    def _rows(self, parts: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return tokens, positions and slots of a step's rows, and where those of each sequence begin."""
        rows = [(s, p) for s, begin, end in parts for p in range(begin, end)]
        return (
            [self._tokens[s][p] for s, p in rows],
            [p for _, p in rows],
            [N_TOKENS * self._blocks[s] + p for s, p in rows],
            np.cumsum([0, *(end - begin for _, begin, end in parts)]).tolist(),
        )
