"""The likeliest logits of rows, found on a device: exactly those of the whole rows, in kilobytes.  Oracle: NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from counting_device import CountingDevice, counting_device
from quire import LLM, SamplingParams
from quire._native import graph
from quire._native.core import Tensor

Array = npt.NDArray[np.float32]
N_VOCAB, STRIP = 64 * 600, 64


@pytest.fixture
def counting() -> CountingDevice:
    return counting_device()


def rows_of_all_kinds() -> Array:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((9, N_VOCAB)).astype(np.float32)
    rows[1] = np.sort(rows[1])[::-1]  # the likeliest side by side
    rows[2] = np.round(rows[2])  # many are equal, in more strips than are brought
    rows[3, 5000:] = -np.inf
    rows[4] = -np.inf
    rows[4, [7, 9000]] = 1.0
    rows[5, 17] = np.nan
    rows[6, 18] = np.inf
    rows[7] = 3e38 * rng.uniform(0.5, 1, N_VOCAB)  # their sum is infinite
    rows[8] -= 100
    return rows


def executor(table: Array, counting: CountingDevice) -> graph.Executor:
    """Logits of a token are its row of the table."""
    tracer = graph.Tracer([])
    x = graph.embed(tracer.tokens, graph.Weight("table", Tensor.from_numpy(table).to(counting.device)))
    trace = tracer.finish(graph.select_rows(x, tracer.logit_rows))
    return graph.Executor(trace, counting.device, n_blocks=2, threads=1, max_rows=16, max_sequences=1)


def run(made: graph.Executor, tokens: list[int], likeliest: list[int]) -> Array:
    n = len(tokens)
    return made.run(
        tokens, positions=list(range(n)), slots=[], logit_rows=list(range(n)), row_begin=[0, n], n_kv=[n], tables=[],
        likeliest=likeliest,
    )  # fmt: skip


def likeliest_of(row: Array, k: int) -> list[tuple[float, int]]:
    """The k largest above -inf, of equal ones those with smaller ids first."""
    order = np.lexsort((np.arange(len(row)), -row.astype(np.float64)))[:k]
    return [(float(row[i]), int(i)) for i in order if row[i] > -np.inf]


def test_the_likeliest_are_those_of_the_whole_rows(counting: CountingDevice) -> None:
    rows = rows_of_all_kinds()
    made = executor(rows, counting)
    rng = np.random.default_rng(2)
    for _ in range(12):  # rows lie where others lay before
        tokens = [int(t) for t in rng.permutation(len(rows))[: rng.integers(1, 10)]]
        wanted = [int(k) for k in rng.choice([0, 1, 3, 7, 20, 40, 127, 128, 5000], len(tokens))]
        found = run(made, tokens, wanted)
        for token, k, row in zip(tokens, wanted, found, strict=True):
            whole = rows[token]
            if k == 0 or k > 127 or token in (5, 6, 7):
                np.testing.assert_array_equal(row, whole)
                continue
            assert likeliest_of(row, k) == likeliest_of(whole, k)
            there = row > -np.inf
            np.testing.assert_array_equal(row[there], whole[there])


def test_strips_are_brought_and_no_rows(counting: CountingDevice) -> None:
    made = executor(rows_of_all_kinds(), counting)
    row_bytes = N_VOCAB * 4
    for k, n_strips in ((1, 8), (20, 32), (40, 64), (100, 128)):
        run(made, [0, 8, 3], [k] * 3)
        counting.reset()
        run(made, [0, 8, 3], [k] * 3)
        counts = counting.counts()
        assert (counts.computes, counts.uploads, counts.synchronizations) == (1, 1, 1)
        assert counts.download_bytes == 3 * (n_strips * (STRIP + 1) + 1) * 4
    counting.reset()
    run(made, [0, 2, 3], [1, 1, 0])  # the second has equals; of the third all is wanted
    counts = counting.counts()
    assert counts.synchronizations == 2
    assert counts.download_bytes == 3 * (8 * (STRIP + 1) + 1) * 4 + 2 * row_bytes
    counting.reset()
    run(made, [0, 2, 3], [])
    assert counting.counts().download_bytes == 3 * row_bytes


def test_without_the_operations_rows_come_whole(counting: CountingDevice) -> None:
    rows = rows_of_all_kinds()
    with counting.without("TOP_K"):
        made = executor(rows, counting)
        np.testing.assert_array_equal(run(made, [0, 1], [1, 1]), rows[:2])


PROMPTS = ["Once upon a time", "The bird said", "Every morning she walked down to the river"]
OPTIONS = {"threads": 1, "n_ctx": 256, "kv_dtype": "f32", "max_step_tokens": 64, "max_sequences": 8}
PARAMS = {
    "greedy": SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True),
    "top_k": SamplingParams(max_tokens=16, temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=3, min_tokens=4),
    "choices": SamplingParams(max_tokens=12, top_k=5, n=3, seed=4, bad_token_ids=[5]),
    "whole": SamplingParams(max_tokens=8, seed=5, repetition_penalty=1.2, top_k=5),
    "logprobs": SamplingParams(max_tokens=8, temperature=0.0, logprobs=3),
    # Tokens that no strip of the likeliest has.
    "bias": SamplingParams(max_tokens=2, temperature=0.0, logit_bias={4000: 90.0}),
    "allowed": SamplingParams(max_tokens=2, temperature=0.0, allowed_token_ids=[7, 4001]),
    "excluded": SamplingParams(max_tokens=8, temperature=0.0, bad_token_ids=list(range(4, 1000)), min_tokens=8),
}


def test_answers_are_those_of_whole_rows(counting: CountingDevice) -> None:
    """To requests of every kind; and what a step brings to the host.

    The same graph without strips is what they are compared with: on some processors the last bits of ggml's products
    differ between this device's graphs and the CPU's.
    """

    def answers(llm: LLM) -> list[object]:
        each = [llm.generate(prompt, params)[0] for params in PARAMS.values() for prompt in PROMPTS]
        return [[choice.token_ids for choice in result.choices] for result in each]

    with counting.without("TOP_K"), LLM(device="Counting0", **OPTIONS) as whole:  # type: ignore[arg-type]
        counting.reset()
        expected = answers(whole)
        row_bytes = whole.n_vocab * 4
        assert counting.counts().download_bytes >= counting.counts().computes * row_bytes
    with LLM(device="Counting0", **OPTIONS) as on_device:  # type: ignore[arg-type]
        assert answers(on_device) == expected
        assert on_device.n_vocab % STRIP == 0
        counting.reset()
        on_device.generate(PROMPTS, PARAMS["greedy"])
        counts = counting.counts()
    assert counts.download_bytes <= counts.computes * len(PROMPTS) * (8 * (STRIP + 1) + 1) * 4
    assert counts.synchronizations == counts.computes
