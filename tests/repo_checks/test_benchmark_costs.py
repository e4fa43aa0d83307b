"""The benchmarks' least cost of work, for the package's model, whose shape its training code states."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from quire.engine.loading.loader import packaged_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from compare_llama_cpp import runs_of
from comparison_cases import Case
from model_costs import Costs, Speeds, Work

N_PARAMETERS, N_LAYER, HIDDEN, N_HEAD, N_KV_HEAD, HEAD_DIM, N_VOCAB = 7345408, 8, 256, 4, 2, 64, 4096


@pytest.fixture(scope="module")
def costs() -> Costs:
    return Costs.of(packaged_model())


def test_matrices_are_all_parameters_but_the_norms(costs: Costs) -> None:
    norms = N_LAYER * (2 * HIDDEN + 2 * HEAD_DIM) + HIDDEN
    assert costs.n_elements == N_PARAMETERS - norms
    assert costs.n_head_elements == N_VOCAB * HIDDEN
    assert costs.weight_bytes == costs.n_elements * 34 // 32  # Q8_0: 32 bytes of codes and a scale of 2 bytes


def test_a_step_reads_the_weights_once_and_every_context(costs: Costs) -> None:
    token = 2 * N_LAYER * N_KV_HEAD * HEAD_DIM * 2  # keys and values, 2 bytes each
    assert costs.bytes_of_step(Work(1024, 0, 8)) == costs.weight_bytes + 8 * 1024 * token
    assert costs.bytes_of_step(Work(1024, 16, 8, shared=True)) == costs.weight_bytes + (1024 + 8 * 8) * token


def test_operations_count_multiplications_and_additions(costs: Costs) -> None:
    body = 2 * (costs.n_elements - costs.n_head_elements)
    head = 2 * costs.n_head_elements
    pair = 4 * N_LAYER * N_HEAD * HEAD_DIM  # for a query and a key: a product with the key, and one with the value
    assert costs.operations_of_reading(64) == 64 * body + head + pair * 64 * 64 / 2
    assert costs.operations_of_step(Work(100, 0, 3)) == 3 * (body + head + 100 * pair)


def test_the_slower_of_both_limits_counts(costs: Costs) -> None:
    one = Work(0, 2)
    step = costs.bytes_of_step(one)
    assert costs.best_speed(one, step, 1e30) == (1.0, "bandwidth")
    assert costs.best_speed(one, 1e30, costs.operations_of_step(one)) == (1.0, "peak")
    assert costs.best_speed(Work(64, 0), 1.0, costs.operations_of_reading(64)) == (64.0, "peak")


def test_a_prompt_and_the_answer_after_it_are_one_run() -> None:
    def cases(dtype: str, *rows: str) -> list[Case]:
        return [Case(row, "qwen3-0.6b", dtype, Path(f"{dtype}.gguf"), 1.0) for row in rows]

    rows = ["decode-4k", "prefill-512", "decode", "streams-8", "shared-32", "prefill-4096", "package"]
    runs = runs_of([*cases("Q8_0", *rows), *cases("F16", "prefill-4096")])
    assert [(run[-1].dtype, *(case.row for case in run)) for run in runs] == [
        ("Q8_0", "prefill-4096", "decode-4k"),
        ("Q8_0", "prefill-512"),
        ("Q8_0", "decode"),
        ("Q8_0", "streams-8"),
        ("Q8_0", "shared-32"),
        ("Q8_0", "package"),
        ("F16", "prefill-4096"),
    ]


def test_the_speed_of_work_is_that_of_what_it_ends_with() -> None:
    speeds = Speeds(reading=100.0, writing=10.0)
    assert (speeds.of(Work(512, 0)), speeds.of(Work(512, 8)), speeds.of(Work(0, 8, 4))) == (100.0, 10.0, 10.0)
