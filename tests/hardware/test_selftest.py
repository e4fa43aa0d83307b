"""Cases of the self-test: every operation has one, Quire's kernels agree with ggml's, and errors are detected."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quire
from counting_device import counting_device
from quire._native import graph
from quire._native.core import find_device
from quire.errors import UnsupportedError
from quire.hardware import verdict_of, verdicts
from quire.selftest import check_device, gate
from quire.selftest.bench import Bench
from quire.selftest.gate_process import compare
from quire.selftest.models import STEPS, TOLERANCE, model_names, run_model
from quire.selftest.operations import CPU_ONLY, OPERATIONS
from quire.selftest.results import CaseResult, deviation_of, worst_step

# Functions of the stub that are not operations of a forward pass.
NOT_OPERATIONS = {"plan_memory", "cache_bytes_per_block", "packed_row_bytes"}


def operations_of_stub() -> set[str]:
    """Return the functions that the native module's stub declares for forward passes."""
    stub = Path(quire.__file__).parent / "_native" / "graph.pyi"
    return set(re.findall(r"^def (\w+)", stub.read_text(encoding="utf-8"), re.MULTILINE)) - NOT_OPERATIONS


def test_every_operation_has_a_case() -> None:
    assert operations_of_stub() - CPU_ONLY == {case.operation for case in OPERATIONS}
    names = [case.name for case in OPERATIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", OPERATIONS, ids=lambda case: case.name)
def test_our_kernels_agree_with_ggmls_operators(case: Any) -> None:
    """Quire's kernels stand in for a device: they compute the same in another way, and round an F16 cache differently."""
    found = []
    for kernels in ("stock", "cpu"):
        bench = Bench(find_device("CPU"), case.cache, blocks=case.blocks)
        found.append(bench.run(case.build(bench), kernels))
    stock, own = found
    assert [len(step) for step in stock] == [40, 1, 7]
    assert all(step.std() > 1e-3 for step in stock)  # the outputs are not constant
    # Quire keeps F16 matrices as BF16 if the processor multiplies BF16, and an embedding table may be such a matrix.
    tolerance = 4e-3 if case.name == "embed f16" else case.tolerance
    assert worst_step(own, stock, tolerance)[0] <= tolerance


@pytest.mark.parametrize("name", model_names())
def test_models_agree_on_quires_kernels_and_ggmls_operators(name: str) -> None:
    stock, own = (run_model(name, find_device("CPU"), kernels) for kernels in ("stock", "cpu"))
    assert [len(step) for step in stock] == ([44, 1, 8] if name == "bert" else [44, 1, 8, 23, 1, 3])
    assert all(step.std() > 1e-3 for step in stock)
    assert worst_step(own, stock, TOLERANCE)[0] <= TOLERANCE


def test_deviations() -> None:
    a = np.asarray([[3.0, 4.0]], np.float32)
    assert deviation_of(a, a) == 0
    assert deviation_of(np.asarray([[3.0, 4.5]], np.float32), a) == pytest.approx(0.1)
    assert deviation_of(a[:, :1], a) == float("inf")
    assert deviation_of(a * np.float32("nan"), a) == float("inf")
    assert deviation_of(a, a * 0) == float("inf")


def test_the_worst_step_decides() -> None:
    many, one = np.ones((40, 8), np.float32), np.ones((1, 8), np.float32)
    assert worst_step([many, one], [many, one], 0.02) == (0, "")
    deviation, where = worst_step([many, one * 1.25], [many, one], 0.02)  # over all rows together it would be 0.04
    assert deviation == pytest.approx(0.25)
    assert where == "step 2 of 40+1 rows: 1 of 1 rows, from row 1 on"
    late = many.copy()
    late[16:] *= 2
    assert worst_step([late, one], [many, one], 0.02)[1] == "step 1 of 40+1 rows: 24 of 40 rows, from row 17 on"
    assert worst_step([many * np.float32("nan"), one], [many, one], 0.02)[0] == float("inf")


SUPPORTED = [case.name for case in OPERATIONS]


@pytest.mark.parametrize("name", [*SUPPORTED, *(f"model {name}" for name in model_names())])
def test_a_device_that_computes_like_the_cpu_passes(name: str) -> None:
    result = compare(name, counting_device().device)
    assert result.passed, result
    assert result.state == "agrees"


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("linear f32", "MUL_MAT"),
        ("linear q8_0", "MUL_MAT"),
        ("model bloom", "MUL_MAT"),
        ("model bert", "MUL_MAT"),
        ("model gpt2", "ADD"),
    ],
)
def test_a_device_that_is_wrong_from_the_17th_row_on_fails(name: str, operation: str) -> None:
    counting = counting_device()
    with counting.miscomputing(operation, 16):
        result = compare(name, counting.device)
    assert result.state == "differs", result
    # In an encoder every row reads the wrong ones.
    assert re.match(r"step 1 of .* rows, from row " + ("1 " if name == "model bert" else "17 ") + "on", result.reason)
    with counting.miscomputing(operation, 100):
        assert compare(name, counting.device).state == "agrees"


@pytest.mark.parametrize("name", ["linear f32", "model qwen3", "model qwen3moe"])
def test_a_device_that_is_wrong_in_a_step_of_one_row_after_many_fails(name: str) -> None:
    counting = counting_device()
    with counting.miscomputing("MUL_MAT", 16, is_after=True):
        result = compare(name, counting.device)
    assert result.state == "differs", result
    assert "1 of 1 rows" in result.reason


def test_an_operation_that_the_device_computes_wrongly_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = type("Fake", (), {"kind": "gpu"})()
    monkeypatch.setattr(
        Bench, "run", lambda self, y, ended: [np.ones((2, 2), np.float32) * (1 if self.device is not device else 1.1)]
    )
    monkeypatch.setattr(Bench, "value", lambda *_, **__: None)
    monkeypatch.setattr(graph, "tanh", lambda x: x)
    result = compare("tanh", device)
    assert (result.state, result.passed) == ("differs", False)
    assert result.deviation == pytest.approx(0.1)


PROCESS = """
import json, os, sys, time
task = json.loads(sys.stdin.readline())
print("a driver's line")
for name in task["cases"]:
    print(json.dumps({"begin": name}), flush=True)
    if name == "b":
        sys.stderr.write("device lost")
        sys.stderr.flush()
        os.abort()
    if name == "c":
        while True:  # a driver's output does not count as an answer
            time.sleep(0.2)
            print("still compiling", flush=True)
    if name == "e":  # slow, but it reports its steps
        for _ in range(5):
            time.sleep(0.7)
            print(json.dumps({"step": "ended"}), flush=True)
    print(json.dumps({"name": name, "state": "unsupported" if name == "d" else "agrees", "tolerance": 1.0, "deviation": 0.5, "reason": ""}), flush=True)
"""


@pytest.mark.python_only
def test_a_device_that_ends_the_process_or_hangs_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gate, "STEP_S", 2.0)
    monkeypatch.setattr(gate, "SAY_S", 0.3)
    monkeypatch.setattr(gate, "case_names", lambda: ["a", "b", "c", "d", "e"])
    (tmp_path / "gate_process.py").write_text(PROCESS)
    monkeypatch.setattr(gate, "__file__", str(tmp_path / "gate.py"))
    device = find_device("CPU")
    lines: list[str] = []
    checked = check_device(device, lines.append)
    assert [(case.name, case.state) for case in checked.cases] == [
        ("a", "agrees"), ("b", "died"), ("c", "died"), ("d", "unsupported"), ("e", "agrees"),
    ]  # fmt: skip
    assert "device lost" in checked.cases[1].reason
    assert checked.cases[2].reason == "no answer within 2 s"
    assert not checked.verdict.passed
    assert checked.verdict.reason == "b died; 2 of 5 agree, 1 unsupported"
    assert "FAILED" in lines[-1]
    assert any(line.startswith("  e has run for 0 s") for line in lines)
    assert [path.suffix for path in verdicts.verdicts_folder().iterdir()] == [".json"]
    assert verdict_of(device) is None  # the CPU is never checked


def test_a_case_that_the_cpu_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError("[test] no")

    monkeypatch.setattr("quire.selftest.models.run_model", refuse)
    assert compare("model llama", find_device("CPU")) == CaseResult("model llama", "error", 2e-2, reason="[test] no")


COMPARED = """
from counting_device import counting_device
from quire.selftest.models import run_model
counting = counting_device()
with counting.miscomputing("GLU", 16):
    run_model("llama", counting.device)
"""


@pytest.mark.python_only
def test_the_first_wrong_node_is_named_first() -> None:
    """Later nodes get the device's own, wrong values as input, so they agree."""
    source = Path(quire.__file__).parents[1]
    paths = os.pathsep.join([str(source), str(Path(__file__).parents[1] / "support")])
    done = subprocess.run(
        [sys.executable, "-c", COMPARED], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "QUIRE_COMPARE_NODES": "1", "PYTHONPATH": paths},
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("[node] Counting0: ")]
    assert re.search(
        r"\d+ SWIGLU .* f32 \{96, 44, 1, 1\}: .* from number 1536 on; MUL_MAT f32", lines[0]
    )  # 16 rows of 96
    of_steps = [line for line in lines if line.endswith("nodes differ")]
    assert len(of_steps) == len(STEPS)
    assert re.match(r"\[node\] Counting0: 0 of \d+ nodes differ", of_steps[4])  # a step of one row


def test_attention_has_a_case_that_copies_blocks() -> None:
    counting = counting_device()
    launched = []
    for name in ("attend", "attend copied blocks", "attend stretch of the pool"):
        case = next(case for case in OPERATIONS if case.name == name)
        counting.reset()
        bench = Bench(counting.device, case.cache, blocks=case.blocks)
        bench.run(case.build(bench))
        assert counting.launches("FLASH_ATTN_EXT") == 3
        launched.append(counting.launches("GET_ROWS"))
    assert launched[1] == launched[0] + 2 * 2  # K and V, in each step of both sequences
    assert launched[2] == launched[0]
