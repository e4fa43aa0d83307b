"""Operations with a state: NumPy token by token against ggml's graph and our program, in steps of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from quire._native import graph
from quire._native.core import find_device
from quire._native.graph import CacheSpec, Executor, Tracer, TraceTensor
from quire.errors import ShapeError
from trace_bench import N_VOCAB, Array, Bench

Reference = Callable[[list[npt.NDArray[np.float64]]], npt.NDArray[np.float64]]
Plan = list[list[tuple[int, int]]]


@dataclass(frozen=True)
class Case:
    """An operation, the sizes of its inputs and state, and what NumPy makes of one sequence's inputs."""

    n_state: int
    shapes: list[tuple[int, ...]]
    trace: Callable[[Bench, list[TraceTensor]], tuple[TraceTensor, Reference]]
    ranges: dict[int, tuple[float, float]] | None = None  # of inputs, other than -2 to 2


def conv(channels: int, kernel: int, *, bias: bool, silu: bool) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        w, b = bench.array(channels, kernel), bench.array(channels)
        y = graph.conv_state(inputs[0], bench.weight(w), bench.weight(b) if bias else None, layer=0, state=0, silu=silu)

        def reference(values: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
            x = np.concatenate([np.zeros((kernel - 1, channels)), values[0]])
            out = np.stack([(x[i : i + kernel] * w.T).sum(0) for i in range(len(values[0]))]) + (b if bias else 0)
            return out / (1 + np.exp(-out)) if silu else out

        return y, reference

    return Case((kernel - 1) * channels, [(channels,)], trace)


CASES: dict[str, list[Case]] = {
    "conv_state": [
        conv(5, 3, bias=False, silu=False),
        conv(37, 4, bias=True, silu=True),
        conv(600, 2, bias=True, silu=False),
    ],
}
BY_NAME = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]


class StateBench(Bench):
    """Sequences of random tokens that go through an operation in given steps."""

    def __init__(self, case: Case, lengths: list[int]) -> None:
        super().__init__(tracer=Tracer([CacheSpec(states=[("state", case.n_state)])]))
        self.lengths, self.case = lengths, case
        self.ids = [self.random.integers(0, N_VOCAB, n).astype(np.int32) for n in lengths]
        tables, inputs = [], []
        for i, shape in enumerate(case.shapes):
            low, high = (case.ranges or {}).get(i, (-2.0, 2.0))
            table = self.array(N_VOCAB, int(np.prod(shape)), low=low, high=high)
            traced = graph.embed(self.tracer.tokens, self.weight(table))
            tables.append(table)
            inputs.append(graph.reshape(traced, list(shape)))
        y, self.reference = case.trace(self, inputs)
        self.tables = tables
        self.rest = [int(d) for d in y.shape[1:]]
        flat = graph.reshape(y, [int(np.prod(self.rest))])
        self.trace = self.tracer.finish(graph.select_rows(flat, self.tracer.logit_rows))

    def expected(self) -> list[Array]:
        """What NumPy makes of each sequence."""
        return [
            self.reference(
                [t[ids].reshape(-1, *s).astype(np.float64) for t, s in zip(self.tables, self.case.shapes, strict=True)]
            ).astype(np.float32)
            for ids in self.ids
        ]

    def run_plan(self, plan: Plan, kernels: str, *, threads: int = 2) -> list[Array]:
        """Each step of the plan takes so many tokens more of each sequence that it names."""
        executor = Executor(
            self.trace,
            find_device("cpu"),
            n_blocks=8,
            n_states=len(self.lengths) + 1,
            threads=threads,
            kernels=kernels,  # type: ignore[arg-type]
            max_rows=256,
            max_sequences=128,
        )
        done = [0] * len(self.lengths)
        out: list[list[Array]] = [[] for _ in self.lengths]
        for step in plan:
            tokens: list[int] = []
            positions: list[int] = []
            begin = [0]
            for sequence, n in step:
                tokens += self.ids[sequence][done[sequence] : done[sequence] + n].tolist()
                positions += range(done[sequence], done[sequence] + n)
                done[sequence] += n
                begin.append(len(tokens))
            rows = executor.run(
                tokens,
                positions=positions,
                slots=[],
                logit_rows=list(range(len(tokens))),
                row_begin=begin,
                n_kv=[done[sequence] for sequence, _ in step],
                tables=[],
                states=[sequence + 1 for sequence, _ in step],
            ).copy()
            for i, (sequence, _) in enumerate(step):
                out[sequence].append(rows[begin[i] : begin[i + 1]].reshape(-1, *self.rest))
        assert done == self.lengths
        return [np.concatenate(parts) for parts in out]


LENGTHS = [45, 1, 20, 33]
WHOLE: Plan = [[(i, n)] for i, n in enumerate(LENGTHS)]
TOGETHER: Plan = [[(2, 20), (0, 45), (3, 33), (1, 1)][:2], [(3, 33), (1, 1)]]
DECODED: Plan = [[(0, 1)] for _ in range(45)] + [[(1, 1)]] + [[(2, 1), (3, 1)] for _ in range(20)] + [[(3, 1)]] * 13
CHUNKED: Plan = [
    [(0, 7), (1, 1), (2, 3), (3, 16)],
    [(3, 1), (0, 16)],
    [(2, 13), (3, 1)],
    [(0, 21), (2, 1), (3, 15)],
    [(2, 3), (0, 1)],
]
PLANS = {"whole": WHOLE, "together": TOGETHER, "decoded": DECODED, "chunked": CHUNKED}


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("case", BY_NAME)
def test_every_way_of_cutting_equals_numpy(case: Case, plan: Plan, kernels: str) -> None:
    bench = StateBench(case, LENGTHS)
    for found, expected in zip(bench.run_plan(plan, kernels), bench.expected(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("case", BY_NAME)
def test_the_bits_do_not_depend_on_the_steps(case: Case, kernels: str) -> None:
    bench = StateBench(case, LENGTHS)
    first = bench.run_plan(WHOLE, kernels)
    for plan in (TOGETHER, DECODED, CHUNKED):
        for found, expected in zip(bench.run_plan(plan, kernels, threads=1), first, strict=True):
            np.testing.assert_array_equal(found, expected)


def _conv(bench: Bench, *, channels: int = 4, kernel: int = 3, layer: int = 0, state: int = 0) -> TraceTensor:
    x, _ = bench.value(channels)
    return graph.conv_state(x, bench.weight(bench.array(4, kernel)), None, layer=layer, state=state)


def _bench(n_state: int = 8) -> Bench:
    return Bench(tracer=Tracer([CacheSpec(states=[("conv", n_state)])]))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda: _conv(_bench(), channels=5), r"must be f32 \[5"),
        (lambda: _conv(_bench(), kernel=1), "2 or more"),
        (lambda: _conv(_bench(), layer=1), "layer must be below 1"),
        (lambda: _conv(_bench(), layer=-1), "layer must be below 1"),
        (lambda: _conv(_bench(), state=1), "state must be one of the 1"),
        (lambda: _conv(_bench(9)), "conv of layer 0 must have 8 numbers but has 9"),
    ],
)
def test_what_does_not_fit_is_refused(record: Callable[[], TraceTensor], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        record()


def test_a_state_belongs_to_one_operation() -> None:
    bench = _bench()
    _conv(bench)
    with pytest.raises(ShapeError, match="must belong to one operation"):
        _conv(bench)


def test_no_state_may_be_left_over() -> None:
    bench = _bench()
    x, _ = bench.value(4)
    with pytest.raises(ShapeError, match="conv of layer 0"):
        bench.tracer.finish(graph.select_rows(x, bench.tracer.logit_rows))
