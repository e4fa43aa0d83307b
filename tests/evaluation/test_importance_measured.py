"""Importance measured over a text, against NumPy and llama-imatrix on the same text (importance.npz)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from chosen_kernels import threads_of
from measured_cases import N_CTX, TINY, model_of
from quire._native.quant import dequantize
from quire.cli.main import main
from quire.errors import QuireError, UnsupportedError
from quire.evaluation.chunks import chunks_of
from quire.evaluation.scorer import Scorer
from quire.gguf import GGUFReader
from quire.quantization import Importance

REFERENCES = Path(__file__).resolve().parents[1] / "references" / "importance.npz"


def measured(files: Path, name: str, *more: str) -> Importance:
    out = files / f"{name}.imatrix.gguf"
    text = files / ("text.txt" if name == "package" else "bytes.txt")
    model = str(model_of(files, name))
    threads = str(threads_of("stock"))
    arguments = ["imatrix", "-m", model, "-f", str(text), "-o", str(out), "-c", str(N_CTX), "-t", threads, *more]
    assert main(arguments) == 0
    return Importance.read(out)


@pytest.mark.parametrize("name", [pytest.param("package", marks=pytest.mark.slow), *TINY])
def test_values_equal_those_of_llama_imatrix(files: Path, name: str) -> None:
    found = measured(files, name, "--no-ppl", "--process-output")
    with np.load(REFERENCES) as stored:
        names = [key.partition("/")[2] for key in stored if key.startswith(f"{name}/") and not key.endswith("/counts")]
        assert names
        for tensor in names:
            sums, means = found.sums[tensor], stored[f"{name}/{tensor}"]
            counts = np.broadcast_to(stored[f"{name}/{tensor}/counts"], sums.counts.shape)
            # An expert with few rows may have one more or less.
            assert np.abs(sums.counts - counts).max() <= 0.01 * counts.max(), tensor
            both = (sums.counts > 0) & (counts > 0)
            own, its = sums.mean()[both], means.reshape(sums.squares.shape)[both]
            assert np.abs(own - its).max() <= 1e-3 * np.abs(its).max(), tensor
        if name != "package":
            assert {one for one in found.sums if one != "token_embd.weight"} == set(names)


def test_sums_equal_numpys(files: Path) -> None:
    """The first products have normed rows of the embedding as inputs; the number of threads does not matter."""
    reader = GGUFReader(model_of(files, "package"))
    table = dequantize(reader.tensor("token_embd.weight"))
    gain = reader.tensor("blk.0.attn_norm.weight").numpy()
    sums = []
    for threads in (1, 2):
        with Scorer.open(None, {"kernels": "stock", "threads": threads}, N_CTX, sums_inputs=True) as scorer:
            # Odd lengths, so that steps are padded.
            rows = [row[: N_CTX - 17 * i] for i, row in enumerate(chunks_of(scorer.tokenizer, "A bee. " * 99, N_CTX))]
            list(scorer.logits(rows))
            sums.append(scorer.opened.executor.input_sums())
    ids = np.concatenate(rows)
    x = table[ids]
    normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * gain
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"):
        squares, counts = sums[0][name]
        assert counts.tolist() == [len(ids)]
        np.testing.assert_allclose(squares[0], (normed.astype(np.float64) ** 2).sum(axis=0), rtol=1e-5)
    for name, (squares, counts) in sums[0].items():
        np.testing.assert_allclose(squares, sums[1][name][0], rtol=1e-6)
        assert counts.tolist() == [len(ids)], name


def test_rows_of_experts_are_counted(files: Path) -> None:
    found = measured(files, "qwen3moe", "--no-ppl", "--chunks", "2")
    assert found.n_chunks == 2
    for role in ("gate", "up", "down"):
        sums = found.sums[f"blk.1.ffn_{role}_exps.weight"]
        assert sums.squares.shape[0] == len(sums.counts) == 8
        assert sums.counts.sum() == 2 * 2 * N_CTX  # two experts for each token
        assert (sums.squares[sums.counts == 0] == 0).all()
    assert not any(name in found.sums for name in ("output.weight", "token_embd.weight"))


def test_matrices_are_merged_shown_and_written_in_both_formats(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = measured(files, "qwen3moe", "--no-ppl", "--chunks", "2")
    other = measured(files, "qwen3moe", "--no-ppl", "--chunks", "3", "--from-chunk", "2")
    whole = measured(files, "qwen3moe", "--no-ppl", "--chunks", "5", "--save-frequency", "4")
    assert Importance.read(files / "qwen3moe.imatrix.gguf.at_4").n_chunks == 4
    one.write(tmp_path / "one.gguf")
    other.write_older(tmp_path / "other.dat")
    inputs = ["--in-file", str(tmp_path / "one.gguf"), "--in-file", str(tmp_path / "other.dat")]
    assert main(["imatrix", *inputs, "-o", str(tmp_path / "both.gguf"), "-c", str(N_CTX)]) == 0
    both = Importance.read(tmp_path / "both.gguf")
    assert (both.n_chunks, len(both.datasets)) == (5, 1)
    for name in (
        "blk.0.attn_q.weight",
        "blk.1.attn_output.weight",
    ):  # the older format counts chunks instead of an expert's rows
        np.testing.assert_allclose(both.sums[name].mean(), whole.sums[name].mean(), rtol=1e-5)
        assert both.sums[name].counts.tolist() == whole.sums[name].counts.tolist() == [5 * N_CTX]
    older = Importance.read(tmp_path / "other.dat")
    for name, sums in other.sums.items():
        np.testing.assert_allclose(older.sums[name].mean().reshape(sums.mean().shape), sums.mean(), rtol=1e-5)
    capsys.readouterr()
    assert main(["imatrix", "--in-file", str(tmp_path / "one.gguf"), "--show-statistics", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (row,) = (row for row in shown["tensors"] if row["name"] == "blk.1.attn_q.weight")
    means = one.sums["blk.1.attn_q.weight"].mean().astype(np.float64)[0]
    parts = means / means.sum()
    assert row["total"] == pytest.approx(means.sum())
    assert row["deviation"] == pytest.approx(means.std())
    assert row["entropy"] == pytest.approx(-(parts * np.log2(parts)).sum())
    before = one.sums["blk.0.attn_q.weight"].squares[0].astype(np.float64)
    own = one.sums["blk.1.attn_q.weight"].squares[0].astype(np.float64)
    cosine = own @ before / np.sqrt((own @ own) * (before @ before))
    assert row["similarity"] == pytest.approx(cosine)
    assert [layer["layer"] for layer in shown["layers"]] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-m", "{model}"], "(--in-file)"),
        (["-m", "{model}", "-f", "{text}", "-c", "4096"], "at least 8192"),
        (["-m", "{model}", "-f", "{text}", "--kernels", "cpu"], "kernels 'cpu'"),
        (["--in-file", "{text}"], "not an importance matrix"),
        (["--in-file", "{text}", "--json"], "--show-statistics"),
    ],
)
def test_invalid_options_are_errors(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    names = {"model": model_of(files, "package"), "text": files / "bytes.txt"}
    given = [text.format(**names) for text in arguments]
    assert main(["imatrix", *given, "-o", str(tmp_path / "out.gguf")]) in (1, 2, 3)
    assert word in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_quires_kernels_cannot_sum_inputs() -> None:
    with pytest.raises(UnsupportedError, match="stock kernels"):
        Scorer.open(None, {"kernels": "cpu"}, N_CTX, sums_inputs=True)


def test_merging_another_shape_is_an_error(files: Path) -> None:
    one = measured(files, "qwen3moe", "--no-ppl", "--chunks", "2")
    name = "blk.0.attn_q.weight"
    other = Importance(sums={name: one.sums["blk.0.ffn_down_exps.weight"]})
    with pytest.raises(QuireError, match="shape"):
        one.merge(other)
