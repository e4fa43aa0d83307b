"""The scripts of benchmarks/ that are prepared for a GPU, on the CPU with tiny sizes, so that they still run when there is
one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from emulated_kernels import batch_kernels, expert_kernels

Array = npt.NDArray[np.float32]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture(scope="module")
def library() -> str:
    return str(batch_kernels())


@pytest.fixture
def tuner() -> ModuleType:
    import tune_kernels

    return tune_kernels


def test_the_tuner_writes_a_table(library: str, tuner: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "table"
    tuner.main([str(table), "--emulate", "--types", "q6_k", "--library", library])
    lines = [line.split() for line in table.read_text().splitlines() if not line.startswith("#")]
    # The emulation's time is the number of thread blocks: 48 rows fit one of variant 2, 80 rows one of variant 3.
    assert lines == [["q6_k", "512", "48", "2", "1"], ["q6_k", "256", "80", "3", "1"]]
    whole = json.loads((tmp_path / "table.json").read_text())
    assert whole["wrong"] == []
    assert {(row["variant"], row["n_rows"]) for row in whole["timings"]} == {(v, n) for v in range(4) for n in (2, 9)}


def test_wrong_kernels_are_not_chosen(
    library: str, tuner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = tuner.Kernels.run

    def wrong(self: object, variant: int, n_splits: int, x: Array, n_out: int) -> Array:
        found: Array = right(self, variant, n_splits, x, n_out)
        if variant == 3:
            found[0, -1] *= np.float32(1.2)
        if variant == 2:  # within rounding, but other bits in other company
            found[-1, 0] = np.nextafter(found[-1, 0], np.float32(np.inf))
        return found

    monkeypatch.setattr(tuner.Kernels, "run", wrong)
    with pytest.raises(SystemExit):
        tuner.main([str(tmp_path / "table"), "--emulate", "--types", "q8_0", "--library", library])
    told = capsys.readouterr().out
    assert "variant 3 in 1 parts is not what NumPy computes" in told
    assert "variant 2 in 1 parts: the bits of a row depend on other rows" in told
    assert {line.split()[3] for line in (tmp_path / "table").read_text().splitlines()[1:]} == {"1"}


def test_the_tuner_of_experts_adds_to_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tune_experts

    table = tmp_path / "table"
    table.write_text("q6_k 512 48 2 1\nexperts:q8_0 256 256 0 1\n")
    right = tune_experts.Experts.run

    def wrong(self: object, variants: tuple[int, int], n_tokens: int) -> Array:
        found: Array = right(self, variants, n_tokens)
        if variants == (1, 1):
            found[0, -1] += np.abs(found).max()
        return found

    monkeypatch.setattr(tune_experts.Experts, "run", wrong)
    with pytest.raises(SystemExit):
        tune_experts.main([str(table), "--emulate", "--types", "q4_k:q6_k", "--library", str(expert_kernels())])
    # The emulation's time is less for higher variants.
    assert table.read_text().splitlines() == ["q6_k 512 48 2 1", "experts:q4_k 256 256 1 1", "experts:q6_k 256 256 0 1"]
    assert "variants 1 and 1 are not what NumPy computes" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "table.experts.json").read_text())["timings"]) == 3 * 2


def test_torch_answers_continue_prompts() -> None:
    torch = pytest.importorskip("torch")
    from on_gpu import TINY
    from torch_baseline import Answers, Model

    shape, device = TINY[0], torch.device("cpu")
    with torch.inference_mode():
        model = Model(shape, 2, 12, device, torch.float32)
        tokens = torch.randint(shape.n_vocab, (2, 9), generator=model.random)
        whole = model.step(tokens, torch.arange(9), is_prompt=True)
        model.step(tokens[:, :8], torch.arange(8), is_prompt=True)
        last = model.step(tokens[:, 8:], torch.tensor([8]), is_prompt=False)
        np.testing.assert_allclose(last.numpy(), whole.numpy(), atol=1e-4 * float(whole.abs().max()))
        answers = Answers(model, 2, 9)
        answers.tokens.copy_(whole.argmax(-1, keepdim=True))
        answers.step()
        longer = torch.cat((tokens, whole.argmax(-1, keepdim=True)), 1)
        expected = model.step(longer, torch.arange(10), is_prompt=True).argmax(-1, keepdim=True)
    assert (answers.tokens == expected).all()


def test_the_torch_baseline_reports_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch_baseline

    options = ["--tiny", "--prompts", "4", "--streams", "1,2", "--answer", "2", "--rounds", "1"]
    torch_baseline.main([*options, "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["test"], row["streams"]) for row in rows] == [("pp4", 1), ("tg2@4", 1), ("pp4", 2), ("tg2@4", 2)]
    assert all(row["tokens_per_s"] > 0 for row in rows)


def test_the_experiment_runs_all_its_steps(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_experiment

    tried = "kernels of 2 to 64 rows"  # the others differ in one variable, which the CPU does not read
    settings = gpu_experiment.SETTINGS["Q4_K_M"][tried]
    monkeypatch.setattr(gpu_experiment, "SETTINGS", {"Q4_K_M": {tried: settings}})

    options = ["--dry-run", "--library", library, "--types", "q4_k", "--minutes", "60"]
    options += ["--experts", str(expert_kernels())]
    gpu_experiment.main([str(tmp_path / "out"), *options])
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [step for step in found["steps"] if step["error"]] == []
    programs = {row["program"] for row in found["rows"]}
    assert tried in programs
    report = (tmp_path / "out" / "report.md").read_text()
    assert all(program in report for program in programs)
