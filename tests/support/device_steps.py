"""Steps of any composition of sequences on a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from counting_device import CountingDevice
from quire._native import graph
from quire._native.core import Tensor
from small_model import HEAD_DIM, N_KV_HEAD, N_VOCAB, Variant, numpy_forward, random_weights, trace

__all__ = ["BYTES_OF_TOKEN", "LENGTHS", "STEPS", "Sequences", "check_steps", "filled", "tokens_of"]

Array = npt.NDArray[np.float32]
BYTES_OF_TOKEN = 2 * 2 * N_KV_HEAD * HEAD_DIM * 4  # layers, K and V, f32


class Sequences:
    """An executor, and sequences computed in steps of any composition, with block tables scattered over the pool."""

    def __init__(
        self,
        variant: Variant,
        device: CountingDevice,
        n_blocks: int = 64,
        seed: int = 0,
        traced: graph.Trace | None = None,
        **options: object,
    ) -> None:
        def stored(_: str, values: Array) -> Tensor:
            return Tensor.from_numpy(values).to(device.device)

        self.weights = random_weights(seed)
        settings: dict[str, object] = {"threads": 2, "kv_dtype": "f32", "max_rows": 96, "max_sequences": 96}
        self.executor = graph.Executor(
            traced or trace(self.weights, variant, stored),
            device.device,
            n_blocks=n_blocks,
            **(settings | options),  # type: ignore[arg-type]
        )
        self.free = [int(b) for b in 1 + np.random.default_rng(seed).permutation(n_blocks - 1)]
        self.tokens: list[list[int]] = []
        self.done: list[int] = []
        self.tables: list[list[int]] = []

    def add(self, tokens: list[int]) -> int:
        self.tokens.append(tokens)
        self.done.append(0)
        self.tables.append([self.free.pop() for _ in range(-(-len(tokens) // 32))])
        return len(self.tokens) - 1

    def step(self, n_rows: Sequence[tuple[int, int]]) -> list[Array]:
        """Compute the given numbers of rows of sequences; return the logits of each."""
        rows, slots, positions, begin = [], [], [], [0]
        for s, n in n_rows:
            at = range(self.done[s], self.done[s] + n)
            rows += self.tokens[s][self.done[s] : self.done[s] + n]
            slots += [self.tables[s][p // 32] * 32 + p % 32 for p in at]
            positions += list(at)
            begin.append(begin[-1] + n)
            self.done[s] += n
        out = self.executor.run(
            rows,
            positions=positions,
            slots=slots,
            logit_rows=list(range(len(rows))),
            row_begin=begin,
            n_kv=[self.done[s] for s, _ in n_rows],
            tables=[self.tables[s] for s, _ in n_rows],
        )
        return [out[a:b].copy() for a, b in pairwise(begin)]


def tokens_of(n: int, seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, N_VOCAB, n)]


# Steps of every composition: prompts, parts of prompts, decoding, and both together.
LENGTHS = (70, 3, 41, 34, 1, 90)
STEPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 64),),
    ((0, 1), (1, 2), (2, 40)),
    ((3, 33), (0, 1), (1, 1), (2, 1)),
    ((0, 1), (3, 1), (4, 1)),
    ((5, 89), (0, 1)),
    ((0, 2), (5, 1)),
)


def check_steps(made: Sequences, variant: Variant) -> None:
    """Check that ``STEPS`` of new sequences equal NumPy."""
    expected = []
    for i, n in enumerate(LENGTHS):
        made.add(tokens_of(n, i))
        expected.append(numpy_forward(made.weights, variant, made.tokens[i]))
    for step in STEPS:
        first = [made.done[s] for s, _ in step]
        for (s, n), at, found in zip(step, first, made.step(step), strict=True):
            np.testing.assert_allclose(found, expected[s][at : at + n], atol=1e-4 * np.abs(expected[s]).max())


def filled(counting: CountingDevice, n_streams: int, n_tokens: int, n_blocks: int) -> Sequences:
    """Return sequences of n_tokens - 1 tokens in a dense pool."""
    made = Sequences(Variant(), counting, n_blocks, max_rows=128, max_sequences=128)
    made.free = list(range(n_blocks - 1, 0, -1))
    for i in range(n_streams):
        made.add(tokens_of(n_tokens, i))
        for left in range(n_tokens - 1, 0, -128):
            made.step([(i, min(left, 128))])
    return made
