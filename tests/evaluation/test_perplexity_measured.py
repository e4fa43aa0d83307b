"""Perplexity, divergence and tasks, against formulas and llama-perplexity on the same files (measured.json)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from chosen_kernels import threads_of
from measured_cases import N_CTX, model_of
from quire import LLM
from quire.cli.main import main
from quire.errors import LoadError, QuireError
from quire.evaluation.base_file import BaseReader, BaseWriter
from quire.evaluation.chunks import chunks_of
from quire.evaluation.divergence import Divergence, divergences
from quire.evaluation.losses import log_probs
from quire.evaluation.tasks import read_hellaswag, read_multiple_choice, read_winogrande, some_of_hellaswag
from quire.gguf import GGUFReader
from quire.quantization import Wishes, plan, quantize_model

# The references were made with ggml's operators and a cache in single precision.
EXACT = ("--kernels", "stock", "--kv-dtype", "f32", "-t", str(threads_of("stock")))
REFERENCES = Path(__file__).resolve().parents[1] / "references" / "measured.json"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(files: Path) -> Path:
    """Texts, tasks, and quantized versions of the package's model."""
    reader = GGUFReader(model_of(files, "package"))
    quantize_model(reader, files / "quantized.gguf", plan(reader, "Q3_K_S", Wishes(allow_requantize=True)))
    return files


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["perplexity", *arguments, *EXACT, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def value(found: object) -> float:
    assert isinstance(found, dict)
    return float(found["value"])


@pytest.fixture(scope="module")
def references() -> dict[str, float]:
    found: dict[str, float] = json.loads(REFERENCES.read_text())
    return found


def test_perplexity_and_divergence_equal_those_of_llama_perplexity(
    files: Path, references: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    model, text, base = str(model_of(files, "package")), str(files / "text.txt"), str(files / "base.kld")
    common = ("-m", model, "-f", text, "-c")
    whole = shown(capsys, *common, str(N_CTX), "--kl-divergence-base", base)
    assert value(whole["perplexity"]) == pytest.approx(references["perplexity"], rel=1e-3)
    strided = shown(capsys, *common, "256", "--ppl-stride", "64")
    assert value(strided["perplexity"]) == pytest.approx(references["strided"], rel=1e-3)
    quantized = str(files / "quantized.gguf")
    moved = shown(capsys, "-m", quantized, "--kl-divergence", "--kl-divergence-base", base)
    assert shown(capsys, "-m", quantized, "--kl-base", base) == moved
    assert value(moved["perplexity"]) == pytest.approx(references["kl_perplexity"], rel=1e-3)
    assert value(moved["log_perplexity_ratio"]) == pytest.approx(references["log_ratio"], abs=1e-3)
    divergence = moved["kl_divergence"]
    assert value(divergence) == pytest.approx(references["kl_divergence"], rel=0.02)
    assert isinstance(divergence, dict)
    assert divergence["p99"] == pytest.approx(references["kl_p99"], rel=0.05)
    assert 100 * value(moved["same_top"]) == pytest.approx(references["same_top"], abs=0.5)
    assert 100 * value(moved["probability_difference_rms"]) == pytest.approx(references["rms"], rel=0.02)


def test_first_tokens_are_added_to_the_chunks_of_a_base_file(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama-perplexity writes the original chunks, but evaluates each with the beginning-of-text token in front."""
    model = tmp_path / "with_bos.gguf"
    keys = ("tokenizer.ggml.add_bos_token=bool:true", "tokenizer.ggml.bos_token_id=int:1")
    overrides = [word for key in keys for word in ("--override-kv", key)]
    assert main(["quantize", str(model_of(files, "package")), str(model), "COPY", *overrides]) == 0
    with LLM(model, threads=threads_of("stock"), n_ctx=64, kernels="stock", kv_dtype="f32") as llm:
        ids = llm.tokenizer.encode((files / "text.txt").read_text())
        cut = [ids[i * 64 : (i + 1) * 64] for i in (1, 2, 3)]
        assert all(row[0] != 1 for row in cut)
        with BaseWriter(tmp_path / "base", cut, llm.n_vocab) as writer:
            for row in cut:
                writer.write(llm.logits([1, *row[1:]])[32:-1])
    found = shown(capsys, "-m", str(model), "--kl-base", str(tmp_path / "base"))
    assert value(found["kl_divergence"]) < 1e-5
    assert value(found["perplexity"]) == pytest.approx(value(found["base_perplexity"]), rel=1e-4)


@pytest.mark.parametrize(
    ("tasks", "file"),
    [("hellaswag", "hellaswag.txt"), ("winogrande", "winogrande.csv"), ("multiple-choice", "choices.bin")],
)
def test_task_scores_equal_those_of_llama_perplexity(
    files: Path, references: dict[str, float], capsys: pytest.CaptureFixture[str], tasks: str, file: str
) -> None:
    for wanted in (30, 20):  # all, and those that both select
        arguments = ("-f", str(files / file), f"--{tasks}", f"--{tasks}-tasks", str(wanted))
        found = shown(capsys, *arguments)
        assert found["n_tasks"] == wanted
        accuracy = found["accuracy"]
        assert isinstance(accuracy, dict)
        assert 100 * value(accuracy) == pytest.approx(references[f"{tasks} {wanted}"], abs=1e-3)
        assert accuracy["low"] < accuracy["value"] < accuracy["high"] or accuracy["value"] in (0, 1)


def test_perplexity_follows_from_logits(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: double precision over all logits of each chunk, with and without control tokens."""
    text = (files / "text.txt").read_text() + "<|im_start|>" * 3
    (files / "special.txt").write_text(text)
    for more in ((), ("--parse-special",)):
        arguments = ("-f", str(files / "special.txt"), "-c", "48", "--chunks", "3", *more)
        found = shown(capsys, *arguments)
        with LLM(threads=threads_of("stock"), n_ctx=64, kernels="stock", kv_dtype="f32") as llm:
            rows = chunks_of(llm.tokenizer, text, 48, parse_special=bool(more), most=3)
            losses = []
            for row in rows:
                logits = llm.logits(row).astype(np.float64)
                odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
                losses += [-np.log(odds[i - 1, row[i]]) for i in range(25, 48)]
        assert found["n_tokens"] == len(losses) == 3 * 23
        assert value(found["perplexity"]) == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    assert main(["perplexity", *arguments, *EXACT]) == 0
    assert f"perplexity {value(found['perplexity']):.6f}" in capsys.readouterr().out


def test_base_files_hold_log_probabilities(tmp_path: Path) -> None:
    source = np.random.default_rng(1)
    rows = source.integers(0, 37, (3, 10)).tolist()
    logits = source.normal(size=(3, 4, 37)).astype(np.float32) * 6
    logits[1, 2] = 1.0  # all equal
    with BaseWriter(tmp_path / "base", rows, 37) as writer:
        for some in logits:
            writer.write(some)
    reader = BaseReader(tmp_path / "base")
    assert (reader.rows, reader.n_ctx, reader.n_vocab) == (rows, 10, 37)
    for some, found in zip(logits, reader.chunks(), strict=True):
        whole = log_probs(some)
        expected = np.maximum(whole, whole.max(axis=1, keepdims=True) - 16)
        assert np.abs(found - expected).max() < 16 / 65535
    content = (tmp_path / "base").read_bytes()
    for damaged in (content[:-1], content[:30], b"_logitz_" + content[8:], content[:8] + b"\xff" * 12 + content[20:]):
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(LoadError, match="base"):
            BaseReader(tmp_path / "damaged")
    with pytest.raises(ZeroDivisionError), BaseWriter(tmp_path / "half", rows, 37):
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "damaged"]


def test_divergence_equals_its_definition() -> None:
    source = np.random.default_rng(2)
    one, other = (log_probs(source.normal(size=(50, 11)).astype(np.float32)) for _ in range(2))
    p, q = np.exp(one.astype(np.float64)), np.exp(other.astype(np.float64))
    expected = (p * np.log(p / q)).sum(axis=1)
    np.testing.assert_allclose(divergences(one, other), expected, rtol=1e-4)
    assert np.abs(divergences(one, one)).max() == 0
    made = Divergence()
    ids = source.integers(0, 11, 50).tolist()
    made.add(one[:20], other[:20], ids[:20])
    made.add(one[20:], other[20:], ids[20:])
    found = made.statistics()
    assert value(found["kl_divergence"]) == pytest.approx(expected.mean(), rel=1e-5)
    own, its = p[np.arange(50), ids], q[np.arange(50), ids]
    assert value(found["perplexity"]) == pytest.approx(np.exp(-np.log(its).mean()))
    assert value(found["base_perplexity"]) == pytest.approx(np.exp(-np.log(own).mean()))
    assert value(found["probability_difference_rms"]) == pytest.approx(np.sqrt(((its - own) ** 2).mean()), rel=1e-4)
    assert value(found["same_top"]) == pytest.approx((p.argmax(axis=1) == q.argmax(axis=1)).mean())
    assert found["correlation"] == pytest.approx(np.corrcoef(np.log(own), np.log(its))[0, 1], rel=1e-4)


def test_selected_tasks_are_distinct_and_complete() -> None:
    assert sorted(some_of_hellaswag(9, 400)) == list(range(9))
    assert len(set(some_of_hellaswag(100, 30))) == 30


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (read_hellaswag, b"one\ntwo\n"),
        (read_hellaswag, b"context\nfour\na\nb\nc\nd\n"),
        (read_winogrande, b"0,no gap,a,b,1\n"),
        (read_winogrande, b"0,a _ gap,a,b,3\n"),
        (read_winogrande, b""),
        (read_multiple_choice, b""),
        (read_multiple_choice, struct.pack("<I", 1 << 30)),
        (read_multiple_choice, struct.pack("<III", 1, 8, 1 << 31)),
        (read_multiple_choice, struct.pack("<III", 1, 8, 1) + b"q" + struct.pack("<I", 1 << 20)),
    ],
)
def test_malformed_tasks_are_errors(llm: LLM, read: object, data: bytes) -> None:
    assert callable(read)
    with pytest.raises(QuireError):
        read(llm.tokenizer, data, 0 if read is not read_hellaswag else 400)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "no text"),
        (["-f", "{text}", "--kl-divergence"], "--kl-divergence-base"),
        (["-f", "{text}", "--hellaswag", "--winogrande"], "--winogrande"),
        (["-f", "{text}", "--hellaswag", "--save-all-logits", "{out}"], "chunks of a text"),
        (["-f", "{text}", "--kl-base", "{text}"], "log-probabilities"),
        (["-f", "{text}", "--chunks", "0"], "0 chunks"),
        (["-f", "{text}", "--winogrande"], "winogrande"),
        (["-f", "{text}", "-c", "4000"], "at least 8000"),
    ],
)
def test_invalid_options_are_errors(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    names = {"text": files / "bytes.txt", "out": tmp_path / "out"}
    assert main(["perplexity", *(text.format(**names) for text in arguments)]) in (1, 2, 3)
    assert word in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
