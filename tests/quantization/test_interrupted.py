"""Interrupted writing of files: killed processes, full disks, and truncated or hostile inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from quantize_cases import write_importance, write_source
from quire.cli.main import main
from quire.errors import CapacityError, QuireError
from quire.evaluation.recipe import plan_of, read_recipe
from quire.files.whole_file import WholeFile
from quire.gguf import GGUFReader, GGUFWriter

HARNESS = Path(__file__).resolve().parents[1] / "support" / "interrupted_writes.py"
KINDS = {"quantized", "imatrix", "older imatrix", "base", "picture"}

pytestmark = pytest.mark.python_only


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An f32 model and its importance matrix."""
    folder = tmp_path_factory.mktemp("source")
    source = write_source(folder, "qwen3moe")
    write_importance(folder / "imatrix.gguf", source)
    return source, folder / "imatrix.gguf"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_files_are_old_or_new_and_never_partial(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Writers are killed at each step, or get a disk with room for 0 to 99 % of the file."""
    command = [sys.executable, str(HARNESS), *map(str, files), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == KINDS
    for kind, result in found.items():
        assert result["wrong"] == [], kind
        assert result["kills"] >= 8, kind


def test_the_file_of_a_running_writer_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    (tmp_path / ".out.abc.part").write_bytes(b"of a process that was killed")
    (tmp_path / ".outer.abc.part").write_bytes(b"of another file")
    with WholeFile(path, "test") as first:
        first.write(b"first")
        with WholeFile(path, "test") as second:
            second.write(b"second")
            beside = set(os.listdir(tmp_path))
            assert beside == {first.scratch.name, second.scratch.name, ".outer.abc.part"}
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == [".outer.abc.part", "out"]
    with pytest.raises(FileNotFoundError):
        WholeFile(tmp_path / "no" / "out", "test")

    def is_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    full = WholeFile(path, "test", 9)
    monkeypatch.setattr(os, "fsync", is_full)
    with pytest.raises(CapacityError, match=r"^\[test\] .*out' \(9 bytes, \d+ free.*No space"):
        full.commit()
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == [".outer.abc.part", "out"]


@pytest.mark.parametrize("command", ["quantize", "quantize with importance", "imatrix", "perplexity", "recipe"])
def test_truncated_inputs(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Wherever the input ends, the result is an error of one line and no file."""
    source, imatrix = files
    cut, out, text = tmp_path / "cut.gguf", tmp_path / "out", tmp_path / "text"
    text.write_text("a " * 300)
    arguments, whole = {
        "quantize": (["quantize", cut, out, "Q4_0"], source),
        "quantize with importance": (["quantize", "--imatrix", cut, source, out, "IQ3_S"], imatrix),
        "imatrix": (["imatrix", "--in-file", cut, "-o", out], imatrix),
        "perplexity": (["perplexity", "-m", cut, "-f", text, "--kl-divergence-base", out], source),
        "recipe": (["quantize", source, out, "--recipe", cut, "--imatrix", imatrix, "--calibration", text], source),
    }[command]
    content = whole.read_bytes()
    out.write_bytes(b"before")
    # Cuts in the keys, in the names of tensors, in the data, and in the last numbers (up to 31 zeros follow them).
    for end in sorted({0, 3, 24, *np.linspace(100, len(content) - 32, 12).astype(int).tolist()}):
        cut.write_bytes(content[:end])
        assert main([str(one) for one in arguments]) in (2, 3), end
        said = capsys.readouterr().err
        assert said.startswith("quire: ["), said
        assert "Traceback" not in said
        assert out.read_bytes() == b"before"
        assert sorted(os.listdir(tmp_path)) == ["cut.gguf", "out", "text"]


def test_hostile_recipes(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Recipes with unknown types, types that do not fit, or matrices of another model."""
    reader = GGUFReader(files[0])
    own = next(info.name for info in reader.tensors if len(info.shape) == 2)
    for entries in (
        [f"{own}=q9_9"], [f"{own}="], [own], ["="], [f"{own}=i32"], [f"{own}=q6_k"], ["no.such.weight=q4_0"],
        [f"{own}=" + "q" * 4096], ["\ud800=q4_0"], [f"{own}=f16"] * 2 + ["\x00=f16"], [f"{own}=q8_1"],
        ["output_norm.weight=q8_0"],
    ):  # fmt: skip
        with GGUFWriter(tmp_path / "hostile.gguf", "qwen3moe") as writer:
            writer.set("quire.recipe.types", [one.encode("utf-8", "surrogatepass") for one in entries], "string[]")
        with pytest.raises(QuireError):
            plan_of(reader, read_recipe(GGUFReader(tmp_path / "hostile.gguf").metadata).types)
