"""Whole quantized files against llama.cpp's quantizer on the same input (references/quantize.json)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from quantize_cases import OPTIONS, TINY, mixes_of, write_importance, write_source
from quire.cli.main import main
from quire.errors import CapacityError, LoadError, QuireError, RequestError, UnsupportedError
from quire.gguf import GGUFReader, GGUFWriter
from quire.quantization import Importance, plan, quantize_model

REFERENCES = json.loads((Path(__file__).resolve().parents[1] / "references" / "quantize.json").read_text())
Source = Callable[[str], Path]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Write the model with this name next to its importance matrix, in the current folder."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = write_source(tmp_path_factory.mktemp(name), name)
            write_importance(made[name].with_name("imatrix.gguf"), made[name])
        return made[name]

    return get


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the references were computed on x86-64")
# Only one model with experts under the sanitizers, because all run the same native code.
@pytest.mark.parametrize(
    "name", [n if n == "qwen3moe" else pytest.param(n, marks=pytest.mark.slow) for n in ("package", *TINY)]
)
def test_files_equal_those_of_llama_cpp(
    source: Source, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source(name)
    monkeypatch.chdir(path.parent)  # the file has the importance matrix's path as given
    reader, importance = GGUFReader(path), Importance.read("imatrix.gguf")
    different = []
    for mix in mixes_of(name):
        for suffix, guide in (("", None), ("+imatrix", importance)):
            out = tmp_path / "out.gguf"
            try:
                quantize_model(reader, out, plan(reader, mix, importance=guide), importance=guide)
                found = hash_of(out)
            except RequestError:
                found = None
            if found != REFERENCES[name][mix + suffix]:
                different.append(mix + suffix)
    for option, (mix, _, wishes) in OPTIONS.items():
        try:
            quantize_model(reader, tmp_path / "out.gguf", plan(reader, mix, wishes))
            found = hash_of(tmp_path / "out.gguf")
        except RequestError:
            found = None
        if found != REFERENCES[name][option]:
            different.append(option)
    assert different == []


def test_the_command_writes_the_same_file(source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = source("qwen3moe"), tmp_path / "out.gguf"
    assert main(["quantize", str(path), str(out), "q4_k", "2"]) == 0
    assert hash_of(out) == REFERENCES["qwen3moe"]["Q4_K_M"]
    assert "bits per weight" in capsys.readouterr().err
    # From the checkpoint's folder, without an intermediate file.
    assert main(["quantize", str(path.parent / "qwen3moe"), str(out), "Q4_K_M"]) == 0
    assert hash_of(out) == REFERENCES["qwen3moe"]["Q4_K_M"]
    for words in (["15"], ["15", "2"]):  # llama.cpp's number of the type
        assert main(["quantize", str(path), str(out), *words]) == 0
        assert hash_of(out) == REFERENCES["qwen3moe"]["Q4_K_M"]
    assert main(["quantize", "--pure", str(path), str(out), "Q4_K_M"]) == 0
    assert hash_of(out) == REFERENCES["qwen3moe"]["pure"]
    before = out.read_bytes()
    assert main(["quantize", "--dry-run", str(path), str(out), "Q8_0"]) == 0
    assert out.read_bytes() == before
    assert "token_embd.weight" in capsys.readouterr().out
    assert main(["quantize", str(path), str(out), "Q8_0", "--override-kv", "general.name=str:other"]) == 0
    assert GGUFReader(out).metadata.text("general.name") == "other"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["{in}", "{out}", "Q9"], "no TYPE"),
        (["{in}", "{out}", "6"], "no TYPE"),
        (["{in}", "{out}"], "no TYPE"),
        (["{in}", "{in}", "Q8_0"], "same file"),
        (["{in}", "{out}", "Q8_0", "--tensor-type", "attn_v"], "PATTERN=TYPE"),
        (["{in}", "{out}", "Q8_0", "--tensor-type", "attn_v=q99"], "'q99'"),
        (["{in}", "{out}", "Q8_0", "--tensor-type", "(=q8_0"], "'(' (missing"),
        (["{in}", "{out}", "Q8_0", "--override-kv", "a=int:x"], "KEY=int"),
        (["{in}", "{out}", "Q8_0", "--include-weights", "a", "--exclude-weights", "b"], "--exclude-weights"),
        (["{in}", "{out}", "Q8_0", "--imatrix", "{in}"], "no sums"),
        (["{q8}", "{out}", "Q4_0"], "--allow-requantize"),
    ],
)
def test_invalid_options_are_errors(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    from quire.engine.loading.loader import packaged_model

    names = {"in": source("qwen3moe"), "out": tmp_path / "out.gguf", "q8": packaged_model()}
    assert main(["quantize", *(text.format(**names) for text in arguments)]) in (1, 2, 3)
    assert word in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_importance_is_kept_merged_and_selected(tmp_path: Path, source: Source) -> None:
    path = source("mixtral").with_name("imatrix.gguf")
    importance = Importance.read(path)
    name = next(iter(importance.sums))
    before = importance.sums[name].squares.copy()
    importance.merge(Importance.read(path))
    assert np.array_equal(importance.sums[name].squares, 2 * before)
    assert (importance.n_chunks, importance.datasets) == (6, ["a text"])
    importance.select(include=("attn",), exclude=("attn_k",))
    assert all("attn" in one and "attn_k" not in one for one in importance.sums)
    other = Importance.read(path)
    other.sums[name].squares = other.sums[name].squares[:, 1:]
    with pytest.raises(RequestError, match="shape"):
        other.merge(Importance.read(path))
    reader, other = GGUFReader(source("qwen3moe")), Importance.read(path)
    with pytest.raises(RequestError, match="another model"):
        quantize_model(reader, tmp_path / "x", plan(reader, "Q8_0", importance=other), importance=other)
    assert not (tmp_path / "x").exists()


def test_the_older_format_of_importance(tmp_path: Path) -> None:
    path = tmp_path / "old.dat"
    values = np.array([1.0, 4.0], "<f4")
    entry = struct.pack("<i", 3) + b"abc" + struct.pack("<ii", 2, 2) + values.tobytes()
    whole = struct.pack("<i", 1) + entry + struct.pack("<ii", 5, 4) + b"text"
    path.write_bytes(whole)
    importance = Importance.read(path)
    assert importance.sums["abc"].mean().tolist() == [[0.5, 2.0]]
    assert (importance.n_chunks, importance.datasets) == (5, ["text"])
    for end in range(1, len(whole) - 12):
        path.write_bytes(whole[:end])
        with pytest.raises(LoadError):
            Importance.read(path)


def test_hostile_importance_is_an_error(tmp_path: Path, source: Source) -> None:
    content = bytearray(source("mixtral").with_name("imatrix.gguf").read_bytes())
    path = tmp_path / "hostile"
    random = np.random.default_rng(1)
    for _ in range(200):
        changed = bytearray(content)
        for at in random.integers(0, min(len(changed), 6000), 3):
            changed[at] = random.integers(0, 256)
        path.write_bytes(changed)
        try:
            Importance.read(path)
        except QuireError:
            continue


def test_a_split_model_stays_split_or_is_joined(tmp_path: Path) -> None:
    """A model of two files becomes two files or one, with the same tensors."""
    whole = write_source(tmp_path, "qwen3moe")
    reader = GGUFReader(whole)
    names = [info.name for info in reader.tensors]
    for part, own in enumerate((names[:10], names[10:])):
        with GGUFWriter(tmp_path / f"m-{part + 1:05}-of-00002.gguf", "qwen3moe") as writer:
            if part == 0:
                writer.copy_metadata(reader.metadata)
            writer.set("split.no", part, "u16")
            writer.set("split.count", 2, "u16")
            writer.set("split.tensors.count", len(names), "i32")
            for name in own:
                info = reader.tensor_info(name)
                writer.add_tensor(name, info.dtype, info.shape)
            for name in own:
                writer.write(name, reader.tensor(name))
    split = GGUFReader(tmp_path / "m-00001-of-00002.gguf")
    todo = plan(split, "Q8_0")
    paths = quantize_model(split, tmp_path / "out.gguf", todo, keep_split=True)
    assert [path.name for path in paths] == ["out-00001-of-00002.gguf", "out-00002-of-00002.gguf"]
    (one,) = quantize_model(split, tmp_path / "one.gguf", todo)
    first, second = GGUFReader(paths[0]), GGUFReader(one)
    assert {info.name for info in first.tensors} == set(names)
    for name in names:
        assert np.array_equal(first.tensor(name).numpy(), second.tensor(name).numpy())


def test_a_full_disk_leaves_nothing(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = GGUFReader(source("qwen3moe"))
    out = tmp_path / "out.gguf"
    out.write_bytes(b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CapacityError, match=r"\(\d+ bytes, \d+ free.*No space"):
        quantize_model(reader, out, plan(reader, "Q8_0"))
    assert out.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [out]


def test_an_unknown_mix_is_an_error_that_names_it(source: Source) -> None:
    with pytest.raises(RequestError, match=r"'nonsense'.*Q4_K_M"):
        plan(GGUFReader(source("qwen3moe")), "nonsense")
    with pytest.raises(UnsupportedError, match="allow-requantize"):
        plan(GGUFReader(Path(__import__("quire").__file__).parent / "data" / "tiny-chat-q8_0.gguf"), "Q4_0")


def test_embeddings_of_distances_keep_their_type(tmp_path: Path) -> None:
    """DeBERTa multiplies them by every layer's matrices, so that errors of few bits add up."""
    reader = GGUFReader(write_source(tmp_path, "deberta-v2"))
    (made,) = quantize_model(reader, tmp_path / "q.gguf", plan(reader, "Q4_0"))
    dtypes = {info.name: str(info.dtype) for info in GGUFReader(made).tensors}
    assert dtypes["rel_embd.weight"] == "f32" != dtypes["blk.0.ffn_down.weight"]
