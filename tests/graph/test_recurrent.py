"""Operations with a state: NumPy token by token against ggml's graph and our program, in steps of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from counting_device import counting_device
from quire._native import graph, kernels
from quire._native.core import find_device
from quire._native.graph import CacheSpec, Executor, Tracer, TraceTensor
from quire.errors import ShapeError, UnsupportedError
from trace_bench import N_VOCAB, Array, Bench

Numbers = npt.NDArray[np.float64]  # rows of one value of one sequence
Values = list[Numbers]
Reference = Callable[[Values], Numbers]
Plan = list[list[tuple[int, int]]]


@dataclass(frozen=True)
class Case:
    """An operation, the sizes of its inputs and state, and what NumPy makes of one sequence's inputs."""

    n_state: int
    shapes: list[tuple[int, ...]]
    trace: Callable[[Bench, list[TraceTensor]], tuple[TraceTensor, Reference]]
    ranges: dict[int, tuple[float, float]] | None = None  # by input, other than -2 to 2


def conv(channels: int, kernel: int, *, bias: bool, silu: bool) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        w, b = bench.array(channels, kernel), bench.array(channels)
        y = graph.conv_state(inputs[0], bench.weight(w), bench.weight(b) if bias else None, layer=0, state=0, silu=silu)

        def reference(values: Values) -> Numbers:
            x = np.concatenate([np.zeros((kernel - 1, channels)), values[0]])
            out = np.stack([(x[i : i + kernel] * w.T).sum(0) for i in range(len(values[0]))]) + (b if bias else 0)
            return out / (1 + np.exp(-out)) if silu else out

        return y, reference

    return Case((kernel - 1) * channels, [(channels,)], trace)


def token_shift(n: int) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        y = graph.token_shift(inputs[0], layer=0, state=0)
        return y, lambda values: np.concatenate([np.zeros((1, n)), values[0][:-1]])

    return Case(n, [(n,)], trace)


def selective_scan(channels: int, n_state: int, *, skip: bool) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        a, d = bench.array(channels, n_state, low=-3, high=-0.01), bench.array(channels)
        x, dt, b, c = inputs
        y = graph.selective_scan(x, dt, b, c, bench.weight(a), bench.weight(d) if skip else None, layer=0, state=0)

        def reference(values: Values) -> Numbers:
            h = np.zeros((channels, n_state))
            out: Values = []
            for x, dt, b, c in zip(*values, strict=True):
                h = np.exp(dt[:, None] * a) * h + (dt * x)[:, None] * b
                out.append(h @ c + (d * x if skip else 0))
            return np.stack(out)

        return y, reference

    return Case(channels * n_state, [(channels,), (channels,), (n_state,), (n_state,)], trace, {1: (0.0, 1.0)})


def state_space_dual(n_head: int, head_dim: int, n_group: int, n_state: int, *, skip: bool) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        a, d = bench.array(n_head, low=-2, high=-0.01), bench.array(n_head)
        x, dt, b, c = inputs
        y = graph.state_space_dual(x, dt, b, c, bench.weight(a), bench.weight(d) if skip else None, layer=0, state=0)

        def reference(values: Values) -> Numbers:
            h = np.zeros((n_head, head_dim, n_state))
            out: Values = []
            for x, dt, b, c in zip(*values, strict=True):
                of_head, read = (np.repeat(each, n_head // n_group, axis=0)[:, None] for each in (b, c))
                h = np.exp(dt * a)[:, None, None] * h + (dt[:, None] * x)[..., None] * of_head
                out.append((h * read).sum(-1) + (d[:, None] * x if skip else 0))
            return np.stack(out)

        return y, reference

    shapes = [(n_head, head_dim), (n_head,), (n_group, n_state), (n_group, n_state)]
    return Case(n_head * head_dim * n_state, shapes, trace, {1: (0.0, 1.0)})


def retention(n_head: int, n_value: int, n_key_head: int, n_key: int) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        decay = bench.array(n_head, low=-2, high=-0.01)
        q, k, v = inputs

        def reference(values: Values) -> Numbers:
            s = np.zeros((n_head, n_key, n_value))
            out: Values = []
            for query, key, v in zip(*values, strict=True):
                q, k = (np.repeat(x, n_head // n_key_head, axis=0) for x in (query, key))
                s = np.exp(decay)[:, None, None] * s + k[:, :, None] * v[:, None]
                out.append(np.einsum("hkv,hk->hv", s, q))
            return np.stack(out)

        return graph.retention(q, k, v, bench.weight(decay), layer=0, state=0), reference

    keys = (n_key_head, n_key)
    return Case(n_head * n_key * n_value, [keys, keys, (n_head, n_value)], trace)


def gated_delta(n_head: int, n_value: int, n_key_head: int, n_key: int, *, by_key: bool, tiled: bool = False) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        def reference(values: Values) -> Numbers:
            s = np.zeros((n_head, n_key, n_value))
            out: Values = []
            for query, key, v, g, beta in zip(*values, strict=True):
                n = n_head // n_key_head
                q, k = (np.tile(x, (n, 1)) if tiled else np.repeat(x, n, axis=0) for x in (query, key))
                s = s * np.exp(g if by_key else g[:, None])[..., None]
                u = beta[:, None] * (v - np.einsum("hkv,hk->hv", s, k))
                s = s + k[:, :, None] * u[:, None]
                out.append(np.einsum("hkv,hk->hv", s, q))
            return np.stack(out)

        q, k, v, g, beta = inputs
        return graph.gated_delta(q, k, v, g, beta, layer=0, state=0, tiled=tiled), reference

    keys, gates = (n_key_head, n_key), (n_head, n_key) if by_key else (n_head,)
    width = 1 / np.sqrt(n_key)  # the rule is stable for short keys
    ranges = {1: (-width, width), 3: (-1.0, 0.0), 4: (0.0, 1.0)}
    return Case(n_head * n_key * n_value, [keys, keys, (n_head, n_value), gates, (n_head,)], trace, ranges)


def wkv6(n_head: int, n_key: int, n_value: int) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        first = bench.array(n_head, n_key)

        def reference(values: Values) -> Numbers:
            s = np.zeros((n_head, n_key, n_value))
            out: Values = []
            for r, w, k, v in zip(*values, strict=True):
                outer = k[:, :, None] * v[:, None]
                out.append(np.einsum("hkv,hk->hv", s + first[:, :, None] * outer, r))
                s = np.exp(w)[..., None] * s + outer
            return np.stack(out)

        r, w, k, v = inputs
        return graph.wkv6(r, w, k, v, bench.weight(first), layer=0, state=0), reference

    keys = (n_head, n_key)
    return Case(n_head * n_key * n_value, [keys, keys, keys, (n_head, n_value)], trace, {1: (-1.0, 0.0)})


def wkv7(n_head: int, n_key: int, n_value: int) -> Case:
    def trace(bench: Bench, inputs: list[TraceTensor]) -> tuple[TraceTensor, Reference]:
        def reference(values: Values) -> Numbers:
            s = np.zeros((n_head, n_key, n_value))
            out: Values = []
            for r, w, k, v, a, b in zip(*values, strict=True):
                known = np.einsum("hkv,hk->hv", s, a)
                s = np.exp(w)[..., None] * s + k[:, :, None] * v[:, None] + b[:, :, None] * known[:, None]
                out.append(np.einsum("hkv,hk->hv", s, r))
            return np.stack(out)

        r, w, k, v, a, b = inputs
        return graph.wkv7(r, w, k, v, a, b, layer=0, state=0), reference

    keys, width = (n_head, n_key), 1 / np.sqrt(n_key)
    ranges = {1: (-1.0, -0.2), 4: (-width, width), 5: (-width, width)}
    return Case(n_head * n_key * n_value, [keys, keys, keys, (n_head, n_value), keys, keys], trace, ranges)


CASES: dict[str, list[Case]] = {
    "conv_state": [
        conv(5, 3, bias=False, silu=False),
        conv(37, 4, bias=True, silu=True),
        conv(600, 2, bias=True, silu=False),
    ],
    "token_shift": [token_shift(7)],
    "selective_scan": [selective_scan(5, 3, skip=False), selective_scan(151, 16, skip=True)],
    "state_space_dual": [
        state_space_dual(3, 5, 1, 7, skip=False),
        state_space_dual(4, 64, 2, 16, skip=True),
        state_space_dual(2, 83, 2, 37, skip=True),
    ],
    "retention": [retention(3, 5, 1, 7), retention(2, 83, 2, 37)],
    "gated_delta": [
        gated_delta(3, 5, 1, 7, by_key=False),
        gated_delta(4, 64, 2, 32, by_key=False),
        gated_delta(4, 20, 2, 16, by_key=False, tiled=True),
        gated_delta(2, 83, 2, 37, by_key=True),
    ],
    "wkv6": [wkv6(3, 5, 5), wkv6(2, 37, 64)],
    "wkv7": [wkv7(3, 5, 5), wkv7(2, 37, 64)],
}
# Sizes that ggml has operators for, which devices run.
DEVICE_CASES: dict[str, list[Case]] = {
    "conv_state": [*CASES["conv_state"], conv(37, 5, bias=True, silu=True), conv(128, 3, bias=False, silu=True)],
    "token_shift": CASES["token_shift"],
    "selective_scan": [selective_scan(5, 3, skip=False), selective_scan(128, 16, skip=True)],
    "state_space_dual": [state_space_dual(3, 16, 1, 7, skip=False), state_space_dual(4, 32, 2, 128, skip=True)],
    "retention": [retention(3, 16, 1, 7), retention(4, 16, 2, 128)],
    "gated_delta": [
        gated_delta(4, 16, 4, 16, by_key=False),
        gated_delta(4, 32, 2, 32, by_key=False),
        gated_delta(4, 32, 2, 32, by_key=False, tiled=True),
        gated_delta(3, 16, 1, 16, by_key=True),
    ],
    "wkv6": [wkv6(2, 64, 64)],
    "wkv7": [wkv7(2, 64, 64)],
}


def by_name(cases: dict[str, list[Case]]) -> list[object]:
    return [pytest.param(case, id=f"{name}-{i}") for name, some in cases.items() for i, case in enumerate(some)]


BY_NAME = by_name(CASES)


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
        """Return NumPy's result for each sequence."""
        return [
            self.reference(
                [t[ids].reshape(-1, *s).astype(np.float64) for t, s in zip(self.tables, self.case.shapes, strict=True)]
            ).astype(np.float32)
            for ids in self.ids
        ]

    def run_plan(self, plan: Plan, way: str, *, threads: int | None = None, isa: str | None = None) -> list[Array]:
        """Each step of the plan takes so many tokens more of each sequence that it names."""
        on_device = way == "device"
        executor = Executor(
            self.trace,
            counting_device().device if on_device else find_device("cpu"),
            n_blocks=1,
            n_states=len(self.lengths) + 1,
            threads=threads or threads_of(way),
            kernels="stock" if on_device else way,  # type: ignore[arg-type]
            kernel_set=None if isa is None else kernels.KernelSet(isa),
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


@pytest.mark.parametrize("way", ["stock", "cpu"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("case", BY_NAME)
def test_every_way_of_cutting_equals_numpy(case: Case, plan: Plan, way: str) -> None:
    bench = StateBench(case, LENGTHS)
    for found, expected in zip(bench.run_plan(plan, way), bench.expected(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("way", ["stock", "cpu"])
@pytest.mark.parametrize("case", BY_NAME)
def test_the_bits_do_not_depend_on_the_steps(case: Case, way: str) -> None:
    bench = StateBench(case, LENGTHS)
    first = bench.run_plan(WHOLE, way, threads=2)
    for plan in (TOGETHER, DECODED, CHUNKED):
        for found, expected in zip(bench.run_plan(plan, way, threads=1), first, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("case", by_name(DEVICE_CASES))
def test_a_device_equals_numpy(case: Case, plan: Plan) -> None:
    """Streams of equally many rows, and such as are padded; states stay in slots that nobody else reads."""
    counting = counting_device()
    counting.reset()
    bench = StateBench(case, LENGTHS)
    for found, expected in zip(bench.run_plan(plan, "device"), bench.expected(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=5e-5, atol=5e-5 * np.abs(expected).max())
    assert counting.counts().computes == len(plan)


@pytest.mark.parametrize("kernel", [3, 4])
def test_a_convolution_without_an_operator_of_its_own(kernel: int) -> None:
    counting = counting_device()
    bench = StateBench(conv(37, kernel, bias=True, silu=True), LENGTHS)
    counting.reset()
    with counting.without("SSM_CONV"):
        for found, expected in zip(bench.run_plan(CHUNKED, "device"), bench.expected(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=5e-5, atol=5e-5 * np.abs(expected).max())
    assert counting.launches("SSM_CONV") == 0


@pytest.mark.parametrize(
    ("case", "lacks"),
    [
        (gated_delta(3, 5, 1, 7, by_key=False), ()),
        (wkv7(2, 37, 64), ()),
        (gated_delta(4, 32, 2, 32, by_key=False), ("GATED_DELTA_NET",)),
        (state_space_dual(4, 32, 2, 128, skip=True), ("SSM_SCAN",)),
    ],
)
def test_operations_without_a_device_operator_are_refused(case: Case, lacks: tuple[str, ...]) -> None:
    with (
        counting_device().without(*lacks),
        pytest.raises(UnsupportedError, match="Counting0 has no operator for these sizes"),
    ):
        StateBench(case, LENGTHS).run_plan(WHOLE, "device")


@pytest.mark.parametrize("isa", kernels.supported_isas())
@pytest.mark.parametrize("case", BY_NAME)
def test_every_instruction_set_equals_numpy(case: Case, isa: str) -> None:
    bench = StateBench(case, LENGTHS)
    for found, expected in zip(bench.run_plan(CHUNKED, "cpu", isa=isa), bench.expected(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


def _conv(bench: Bench, *, channels: int = 4, kernel: int = 3, layer: int = 0, state: int = 0) -> TraceTensor:
    x, _ = bench.value(channels)
    return graph.conv_state(x, bench.weight(bench.array(4, kernel)), None, layer=layer, state=state)


def _bench(n_state: int = 8) -> Bench:
    return Bench(tracer=Tracer([CacheSpec(states=[("conv", n_state)])]))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda: _conv(_bench(), channels=5), r"expected f32 \[5"),
        (lambda: _conv(_bench(), kernel=1), "2 to 32"),
        (lambda: _conv(_bench(), layer=1), "layer .* out of range"),
        (lambda: _conv(_bench(), layer=-1), "layer .* out of range"),
        (lambda: _conv(_bench(), state=1), "state 1 is out of range"),
        (lambda: _conv(_bench(9)), "conv of layer 0 has 9 numbers: expected 8"),
    ],
)
def test_mismatched_shapes_are_refused(record: Callable[[], TraceTensor], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        record()


def _values(bench: Bench, *shapes: tuple[int, ...]) -> list[TraceTensor]:
    return [bench.value(*shape)[0] for shape in shapes]


def _scan(x: int, dt: int, b: int, c: int) -> TraceTensor:
    bench = _bench(8)
    one, two, three, four = _values(bench, (x,), (dt,), (b,), (c,))
    return graph.selective_scan(one, two, three, four, bench.weight(bench.array(4, 2)), None, layer=0, state=0)


def _delta(q: tuple[int, ...], g: tuple[int, ...], *, n_head: int = 4, n: int = 96) -> TraceTensor:
    bench = _bench(n)
    one, two, three, four, five = _values(bench, q, q, (n_head, 6), g, (n_head,))
    return graph.gated_delta(one, two, three, four, five, layer=0, state=0)


def _dual(dt: int, c: tuple[int, ...]) -> TraceTensor:
    bench = _bench(96)
    one, two, three, four = _values(bench, (4, 6), (dt,), (2, 4), c)
    return graph.state_space_dual(one, two, three, four, bench.weight(bench.array(4)), None, layer=0, state=0)


def _retention(q: tuple[int, ...], n: int) -> TraceTensor:
    bench = _bench(96)
    one, two, three = _values(bench, q, (2, 4), (4, 6))
    return graph.retention(one, two, three, bench.weight(bench.array(n)), layer=0, state=0)


def _wkv(w: tuple[int, ...]) -> TraceTensor:
    bench = _bench(96)
    one, two, three, four = _values(bench, (4, 4), w, (4, 4), (4, 6))
    return graph.wkv6(one, two, three, four, bench.weight(bench.array(4, 4)), layer=0, state=0)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda: _scan(4, 5, 2, 2), "x and dt"),
        (lambda: _scan(4, 4, 2, 3), "b and c"),
        (lambda: _scan(4, 4, 3, 3), r"expected f32 \[4, 3\]"),
        (lambda: _delta((3, 4), (4,)), "4 heads of values are no multiple of 3"),
        (lambda: _delta((2, 4), (2,)), r"g is \[tokens, 2\]: expected \[tokens, 4\]"),
        (lambda: _delta((2, 4), (4, 3)), r"g is .*: expected \[tokens, 4, 4\]"),
        (lambda: _delta((2, 257), (4,)), "up to 256"),
        (lambda: _delta((2, 4), (4,), n=95), "95 numbers: expected 96"),
        (lambda: _dual(3, (2, 4)), r"dt is .*: expected \[tokens, 4\]"),
        (lambda: _dual(4, (4, 4)), r"c is .*: expected \[tokens, 2, 4\]"),
        (lambda: _retention((2, 5), 4), r"q is .*: expected \[tokens, 2, 4\]"),
        (lambda: _retention((2, 4), 3), r"expected f32 \[4\]"),
        (lambda: _wkv((4, 5)), r"w is .*: expected \[tokens, 4, 4\]"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused(record: Callable[[], TraceTensor], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        record()


def test_a_state_belongs_to_one_operation() -> None:
    bench = _bench()
    _conv(bench)
    with pytest.raises(ShapeError, match="used by two operations"):
        _conv(bench)


def test_no_state_may_be_left_over() -> None:
    bench = _bench()
    x, _ = bench.value(4)
    with pytest.raises(ShapeError, match="conv of layer 0"):
        bench.tracer.finish(graph.select_rows(x, bench.tracer.logit_rows))
