"""Recipes from measurements: they meet their goals, beat a single type, and can be repeated."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from chosen_kernels import threads_of
from measured_cases import model_of
from quire.cli.main import main
from quire.errors import RequestError
from quire.evaluation.calibration import calibration_from
from quire.evaluation.costs import Costs, groups_of, interpolated, measure_costs
from quire.evaluation.recipe import Recipe, for_divergence, read_recipe
from quire.evaluation.search import for_measured_divergence
from quire.evaluation.trial import Trial, opened_trial
from quire.gguf import GGUFReader
from quire.quantization import Importance, Wishes, plan
from quire.quantization.knapsack import Option

TYPES = "q4_0,q5_0,q8_0,f16"

pytestmark = pytest.mark.slow

THREADS = str(threads_of("stock"))


def made(files: Path, out: Path, *arguments: str) -> GGUFReader:
    source = model_of(files, "qwen3moe")
    common = ["--calibration", str(files / "bytes.txt"), "--candidates", TYPES, "--chunks", "1", "-t", THREADS]
    assert main(["quantize", str(source), str(out), *common, *arguments]) == 0
    return GGUFReader(out)


def bits_of(reader: GGUFReader) -> float:
    return 8 * sum(info.size_bytes for info in reader.tensors) / sum(math.prod(info.shape) for info in reader.tensors)


def test_a_recipe_keeps_its_size_and_beats_one_type(files: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    reader = made(files, tmp_path / "made.gguf", "--bits", "6.2", "--curve", str(picture))
    assert 5.8 < bits_of(reader) <= 6.2
    assert picture.read_bytes().startswith(b"\x89PNG")
    recipe = read_recipe(reader.metadata)
    assert recipe.measured is not None
    assert recipe.measured == pytest.approx(recipe.predicted, rel=0.5)
    assert recipe.types == {name: str(reader.tensor_info(name).dtype) for name in recipe.types}
    assert len(set(recipe.types.values())) > 1
    # Compare with a single type of about that size, over the same text and another one.
    source = GGUFReader(model_of(files, "qwen3moe"))
    same = plan(source, "Q5_0", Wishes(pure=True, embedding_dtype="q5_0", output_dtype="q5_0"))
    own = {tensor.name: tensor.dtype for tensor in same.tensors if tensor.name in recipe.types}
    calibration = calibration_from(files / "bytes.txt", source)
    for rows in (calibration.rows[:1], calibration.rows[1:2]):
        with opened_trial(source, rows, {"threads": int(THREADS)}) as trial:
            assert trial.divergence() == 0
            found = []
            for types in (recipe.types, own):
                for name, dtype in types.items():
                    trial.set(name, trial.values(name, dtype, Importance()))
                found.append(trial.divergence())
        assert 0 < found[0] < found[1]
    assert same.n_bytes <= reader.size_bytes * 1.05


def test_a_recipe_can_be_repeated(files: Path, tmp_path: Path) -> None:
    made(files, tmp_path / "made.gguf", "--size", "150kB", "--layers-together", "2", "--rounds", "0")
    assert (tmp_path / "made.gguf").stat().st_size <= 150_000
    made(files, tmp_path / "again.gguf", "--recipe", str(tmp_path / "made.gguf"))
    first, second = GGUFReader(tmp_path / "made.gguf"), GGUFReader(tmp_path / "again.gguf")
    assert read_recipe(first.metadata).types == read_recipe(second.metadata).types
    for info in first.tensors:
        assert first.tensor(info.name).numpy().tobytes() == second.tensor(info.name).numpy().tobytes()


def test_a_recipe_keeps_its_divergence(files: Path, tmp_path: Path) -> None:
    """With a text that the model generates; the smaller the divergence, the larger the file."""
    sizes = []
    for most in (0.05, 0.002):
        out = tmp_path / f"{most}.gguf"
        source = str(model_of(files, "qwen3moe"))
        arguments = ["--max-kl", str(most), "--candidates", TYPES, "--chunks", "1", "--layers-together", "2"]
        assert main(["quantize", source, str(out), *arguments, "-t", THREADS]) == 0
        reader = GGUFReader(out)
        recipe = read_recipe(reader.metadata)
        assert recipe.measured is not None
        assert recipe.measured <= most
        assert "written by the model" in reader.metadata.text("quire.recipe.calibration")
        sizes.append(reader.size_bytes)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("surprise", [0.2, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("most", [1.0, 0.01])
def test_a_divergence_is_kept_even_if_costs_do_not_add_up(
    surprise: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All matrices together cost a multiple of the sum, like a router that flips; f16 for all costs nothing."""
    sizes = {"q4_0": (100, 1.0), "q5_0": (120, 0.25), "q8_0": (200, 0.004), "f16": (400, 0.0)}
    options = {str(i): [Option(t, n + i, (i + 1) * cost) for t, (n, cost) in sizes.items()] for i in range(6)}

    def measured(_trial: object, recipe: Recipe, _importance: object) -> Recipe:
        return replace(recipe, measured=surprise * recipe.predicted)

    monkeypatch.setattr("quire.evaluation.search.measured", measured)
    found = for_measured_divergence(cast(Trial, None), Costs(options, {}), most, Importance()).recipe
    assert found.measured is not None
    assert found.measured <= most
    # No recipe within the divergence is much smaller; the best one is known here.
    assert found.n_bytes <= 1.1 * for_divergence(Costs(options, {}), most / surprise).n_bytes


def test_a_divergence_out_of_reach_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"a": [Option("q4_0", 100, 1.0), Option("q8_0", 200, 0.004)]}
    monkeypatch.setattr(
        "quire.evaluation.search.measured", lambda _trial, recipe, _importance: replace(recipe, measured=0.5)
    )
    with pytest.raises(RequestError, match=r"0\.1 .*q8_0.* 0\.5"):
        for_measured_divergence(cast(Trial, None), Costs(options, {}), 0.1, Importance())


def test_a_heavy_matrix_is_tried_in_every_type(files: Path) -> None:
    """The costs of its types are measured; for other matrices two types are, and the rest is interpolated."""
    source = GGUFReader(model_of(files, "qwen3moe"))
    rows = calibration_from(files / "bytes.txt", source).rows[:1]
    types, heavy = ("q4_0", "q5_0", "q8_0"), "token_embd.weight"
    with opened_trial(source, rows, {"threads": int(THREADS)}) as trial:
        costs = measure_costs(trial, source, groups_of(source, 2), Importance(), types=types)
        for option in costs.options[heavy]:
            with trial.changed(heavy, trial.values(heavy, option.name, Importance())):
                assert option.cost == pytest.approx(trial.divergence(), rel=1e-6)
    for name, found in costs.trials.items():
        assert len(found) == (len(types) if name in (heavy, "output.weight") else 2), name


def test_divergences_are_interpolated() -> None:
    trials = [(1.0, 2.0), (100.0, 50.0)]
    assert interpolated(0.0, trials) == 0
    assert interpolated(0.5, trials) == pytest.approx(1.0)
    assert interpolated(1.0, trials) == pytest.approx(2.0)
    assert interpolated(10.0, trials) == pytest.approx(10.0)
    assert interpolated(200.0, trials) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--bits", "5", "--size", "1MB"], "--size"),
        (["--bits", "5", "--pure"], "chooses all types"),
        (["Q4_0", "--bits", "5", "Q8_0"], "replaces TYPE"),
        (["--size", "big"], "'big'"),
        (["--size", "10kB"], "86"),
        (["--bits", "2"], "too few"),
        (["--bits", "5", "--candidates", "q4_9"], "'q4_9'"),
        (["--recipe", "{in}"], "quire.recipe.types"),
        (["--recipe", "{in}", "--curve", "x.png"], "measures nothing"),
        (["Q4_0", "--curve", "x.png"], "--bits"),
    ],
)
def test_invalid_options_are_errors(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    source = model_of(files, "qwen3moe")
    given = [text.format(**{"in": source}) for text in arguments]
    more = ["--calibration", str(files / "bytes.txt"), "--chunks", "1", "--layers-together", "2", "--rounds", "0"]
    assert main(["quantize", str(source), str(tmp_path / "out.gguf"), *given, *more]) in (1, 2, 3)
    assert word in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
