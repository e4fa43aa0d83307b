"""``quire gguf``.  Oracle: the ``gguf`` package's reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.cli.main import main
from quire.engine.loading.loader import packaged_model
from quire.gguf import GGUFReader

SOURCE = str(packaged_model())


def same(one: Path, other: Path, *, without: tuple[str, ...] = ()) -> None:
    """Check that both have equal tensors, and equal keys apart from some."""
    first, second = GGUFReader(one), GGUFReader(other)
    keys = [[key for key in reader.metadata if key not in without] for reader in (first, second)]
    assert sorted(keys[0]) == sorted(keys[1])
    for key in keys[0]:
        assert first.metadata.type_of(key) == second.metadata.type_of(key)
        values: list[Any] = [reader.metadata[key] for reader in (first, second)]
        assert np.array_equal(*values)
    assert [info.name for info in first.tensors] == [info.name for info in second.tensors]
    for info in first.tensors:
        assert first.tensor(info.name).numpy().tobytes() == second.tensor(info.name).numpy().tobytes()


def test_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf = pytest.importorskip("gguf")
    assert main(["gguf", "split", SOURCE, str(tmp_path / "m"), "--max-size", "300K"]) == 0
    parts = [Path(line) for line in capsys.readouterr().out.split()]
    n = len(parts)
    assert n > 2
    assert [path.name for path in parts] == [f"m-{i + 1:05}-of-{n:05}.gguf" for i in range(n)]
    assert sum(len(gguf.GGUFReader(path).tensors) for path in parts) == len(GGUFReader(SOURCE).tensors)
    for i, path in enumerate(parts):
        fields = gguf.GGUFReader(path).fields
        assert [int(fields[f"split.{key}"].contents()) for key in ("no", "count")] == [i, n]
    same(packaged_model(), parts[0], without=("split.no", "split.count", "split.tensors.count"))
    assert main(["gguf", "merge", str(parts[0]), str(tmp_path / "whole.gguf")]) == 0
    same(packaged_model(), tmp_path / "whole.gguf")
    names = [str(path) for path in parts]
    assert main(["gguf", "merge", *names, str(tmp_path / "again.gguf")]) == 0
    same(packaged_model(), tmp_path / "again.gguf")
    last = parts[-1].read_bytes()
    capsys.readouterr()
    for words, said in ((names, f"OUT is {names[-1]}"), ([names[0], SOURCE, "x.gguf"], "not a part")):
        assert main(["gguf", "merge", *words]) == 2
        assert said in capsys.readouterr().err
    assert parts[-1].read_bytes() == last


def test_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, template = tmp_path / "a.gguf", tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}\n")
    arch = GGUFReader(SOURCE).metadata.text("general.architecture")
    words = ["general.name=str:Mine", "quire.new=float:1.5", f"{arch}.rope.freq_base=float:5"]
    assert main(["gguf", "set", SOURCE, str(out), *words, "--chat-template-file", str(template)]) == 0
    found = GGUFReader(out).metadata
    changed = ("general.name", "quire.new", f"{arch}.rope.freq_base", "tokenizer.chat_template")
    assert [found[key] for key in changed] == ["Mine", 1.5, 5.0, template.read_text()]
    assert found.type_of(f"{arch}.rope.freq_base") == "f32"
    kept = tmp_path / "b.gguf"
    assert main(["gguf", "remove", str(out), str(kept), "quire.new", "general.name"]) == 0
    same(packaged_model(), kept, without=changed)
    assert "quire.new" not in GGUFReader(kept).metadata
    capsys.readouterr()
    assert main(["gguf", "cat", str(out), "tokenizer.chat_template"]) == 0
    assert capsys.readouterr().out == template.read_text() + "\n"
    assert main(["gguf", "cat", SOURCE]) == 0
    assert "token_embd.weight" in capsys.readouterr().out


ARCH = GGUFReader(SOURCE).metadata.text("general.architecture")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["set", f"{ARCH}.block_count=int:999"], f"{ARCH}.block_count"),
        (["set", f"{ARCH}.attention.head_count=int:7", "general.name=str:Mine"], "head_count 7"),
        (["set", "general.architecture=str:absent"], "general.architecture"),
        (["set", "tokenizer.ggml.model=str:absent"], "tokenizer.ggml.model"),
        (["set", "tokenizer.chat_template=str:{% if"], "tokenizer.chat_template"),
        (["remove", f"{ARCH}.embedding_length"], f"{ARCH}.embedding_length"),
    ],
)
def test_changes_that_make_a_file_unusable(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.gguf"
    action, *keys = words
    assert main(["gguf", action, SOURCE, str(out), *keys]) == 1
    said = capsys.readouterr().err
    assert (named in said, "--force" in said) == (True, True)
    assert not list(tmp_path.iterdir())
    assert main(["gguf", action, SOURCE, str(out), *keys, "--force"]) == 0
    # A file that Quire cannot open already may be changed without --force.
    assert main(["gguf", "set", str(out), str(tmp_path / "y.gguf"), "general.name=str:Mine"]) == 0


def test_weights_follow_the_alignment(tmp_path: Path) -> None:
    out, back = tmp_path / "a.gguf", tmp_path / "b.gguf"
    assert main(["gguf", "set", SOURCE, str(out), "general.alignment=int:4096"]) == 0
    assert GGUFReader(out).alignment == 4096
    same(packaged_model(), out, without=("general.alignment",))
    assert main(["gguf", "remove", str(out), str(back), "general.alignment"]) == 0
    assert (GGUFReader(back).alignment, "general.alignment" in GGUFReader(back).metadata) == (32, False)
    same(packaged_model(), back)


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["set", SOURCE, "x.gguf", "general.name=int:3"], 1, "general.name"),
        (["set", SOURCE, "x.gguf", "general.name"], 1, "KEY=int"),
        (["set", SOURCE, "x.gguf"], 2, "no keys"),
        (["set", SOURCE, SOURCE, "a=int:1"], 2, "FILE itself"),
        (["remove", SOURCE, "x.gguf", "absent.key"], 1, "absent.key"),
        (["remove", SOURCE, "x.gguf", "general.architecture"], 1, "general.architecture"),
        (["split", SOURCE, "x"], 2, "--max-size"),
        (["split", SOURCE, "x", "--max-size", "2Q"], 2, "2Q"),
        (["cat", SOURCE, "absent.key"], 1, "absent.key"),
        (["merge", SOURCE], 2, "no file to write"),
        (["merge", SOURCE, "x.gguf"], 2, "a whole model"),
        (["split", SOURCE, "absent/x", "--max-tensors", "9"], 2, "no folder absent"),
        (["set", SOURCE, "x.gguf", "general.name=Mine"], 1, "[gguf] set"),
        (["set", SOURCE, "x.gguf", "general.alignment=int:3"], 1, "alignment 3"),
        (["cat", SOURCE, "--force"], 2, "--force"),
    ],
)
def test_refusals(
    words: list[str], code: int, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["gguf", *words]) == code
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
