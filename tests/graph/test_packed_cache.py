"""The cache of packed weights: the oracle is packing anew, which every start without the cache does."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import quire
from quire import LLM, GGUFReader, SamplingParams
from quire._native import graph
from quire._native.core import find_device
from quire.models import load_model
from quire.quantization import Wishes, plan, quantize_model

PACKAGED = Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf"
IDS = list(range(100, 140))


def executor(cache: graph.PackedCache | None, model: Path = PACKAGED, **options: object) -> graph.Executor:
    trace = load_model(GGUFReader(model, options.pop("load", "mmap"))).trace()
    options = {"threads": 2, "kv_dtype": "f32", "repack": "release", "packed_cache": cache, **options}
    return graph.Executor(trace, find_device("cpu"), n_blocks=4, **options)


def logits(found: graph.Executor) -> np.ndarray:
    n = len(IDS)
    rows = list(range(n))
    return found.run(
        IDS, positions=rows, slots=[32 + i for i in rows], logit_rows=rows, row_begin=[0, n], n_kv=[n], tables=[[1, 2]]
    )


def names(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def identity(path: Path) -> str:
    found = GGUFReader(path).identity
    assert found
    return found


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return logits(executor(None))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package's model, and its identity."""
    folder = tmp_path_factory.mktemp("kept")
    assert not executor(graph.PackedCache(str(folder), source=identity(PACKAGED))).packed_from_cache
    return folder


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "cache"))


@pytest.mark.parametrize("load", ["mmap", "copy"])
@pytest.mark.parametrize("source", ["known", "to be hashed"])
def test_the_next_start_packs_nothing_and_gives_the_same_bits(
    folder: Path, expected: np.ndarray, load: str, source: str
) -> None:
    known = identity(PACKAGED) if source == "known" else ""
    cache = graph.PackedCache(str(folder), source=known, load=load)
    for repack in ("keep", "release"):
        found = executor(cache, repack=repack, load=load)
        assert found.packed_from_cache
        assert found.packed_cache_notes == []
        assert found.memory_bytes["packed"] == executor(None).memory_bytes["packed"]
        np.testing.assert_array_equal(logits(found), expected)


def test_types_that_another_format_holds_are_found_too(tmp_path: Path) -> None:
    """The file's tiles are compared with what is packed anew from blocks of another size."""
    model, folder = tmp_path / "iq3_s.gguf", tmp_path / "cache"
    reader = GGUFReader(PACKAGED)
    quantize_model(reader, model, plan(reader, "IQ3_S", Wishes(allow_requantize=True)))
    assert GGUFReader(model).tensor_info("blk.0.ffn_up.weight").dtype.name == "iq3_s"
    fresh = executor(graph.PackedCache(str(folder)), model)
    found = executor(graph.PackedCache(str(folder)), model)
    assert [fresh.packed_from_cache, found.packed_from_cache] == [False, True]
    assert found.packed_cache_notes == []
    np.testing.assert_array_equal(logits(found), logits(fresh))


def test_the_first_start_leaves_one_file_and_its_source(kept: Path, tmp_path: Path, expected: np.ndarray) -> None:
    assert names(kept) == [".packed", ".source"]
    new = tmp_path / "made" / "here"
    found = executor(graph.PackedCache(str(new)))
    np.testing.assert_array_equal(logits(found), expected)
    assert found.packed_cache_notes == []
    assert names(new) == [".packed"]
    # One content, one file: byte for byte, whichever process wrote it.
    for path in new.iterdir():
        assert path.read_bytes() == (kept / path.name).read_bytes()
        assert path.stat().st_mode & 0o077 == 0


def test_a_copy_of_the_model_under_another_name_finds_the_file(folder: Path, tmp_path: Path) -> None:
    model = Path(shutil.copy(PACKAGED, tmp_path / "other.gguf"))
    assert GGUFReader(model).identity == ""  # too young to be told from one that is still written
    found = executor(graph.PackedCache(str(folder)), model)
    assert found.packed_from_cache
    assert names(folder) == [".packed", ".source"]


def changed(model: Path, tmp_path: Path) -> Path:
    """The model with some bits of one matrix changed, and its time of modification as it was."""
    info = GGUFReader(model).tensor_info("blk.3.ffn_up.weight")
    data = bytearray(model.read_bytes())
    middle = info.offset_bytes + info.size_bytes // 2
    for i in range(middle, middle + 1000, 34 // 2):
        data[i] ^= 0x20
    other = tmp_path / "changed.gguf"
    other.write_bytes(data)
    times = model.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    return other


def test_other_weights_have_another_file(folder: Path, tmp_path: Path, expected: np.ndarray) -> None:
    other = changed(PACKAGED, tmp_path)
    assert GGUFReader(other).identity != identity(PACKAGED)
    found = executor(graph.PackedCache(str(folder)), other)
    assert not found.packed_from_cache
    assert names(folder) == [".packed", ".packed", ".source"]
    assert not np.array_equal(logits(found), expected)
    np.testing.assert_array_equal(logits(found), logits(executor(None, other)))


def test_identities_change_with_the_file(tmp_path: Path) -> None:
    model = Path(shutil.copy(PACKAGED, tmp_path / "a.gguf"))
    time.sleep(2.1)
    before = identity(model)
    assert before == identity(model)
    os.utime(model, ns=(1, 1))
    time.sleep(2.1)
    assert identity(model) != before


def damage_nothing_left(path: Path) -> None:
    path.write_bytes(b"")


def damage_cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def damage_longer(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 4096)


def damage_foreign(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def damage_magic(path: Path) -> None:
    path.write_bytes(b"Q" + path.read_bytes()[1:])


def damage_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def damage_matrix(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8192:16384] = bytes(8192)
    path.write_bytes(data)


def damage_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def damage_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = [
    damage_nothing_left, damage_cut, damage_longer, damage_foreign, damage_magic, damage_header, damage_matrix,
    damage_folder, damage_pipe,
]  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_ignored_and_replaced(folder: Path, expected: np.ndarray, damage, known: bool) -> None:
    (path,) = folder.glob("*.packed")
    complete = path.read_bytes()
    damage(path)
    cache = graph.PackedCache(str(folder), source=identity(PACKAGED) if known else "")
    found = executor(cache)
    assert not found.packed_from_cache
    assert f"ignored '{path}'" in found.packed_cache_notes[0]
    np.testing.assert_array_equal(logits(found), expected)
    if damage is damage_folder:  # not ours to remove
        assert "cannot keep packed weights" in found.packed_cache_notes[-1]
        return
    assert path.read_bytes() == complete
    assert executor(cache).packed_from_cache


@pytest.mark.parametrize("content", [b"", b"x" * 32, b"x" * 31, b"x" * 4000])
def test_a_damaged_source_file_is_replaced(folder: Path, content: bytes) -> None:
    (path,) = folder.glob("*.source")
    complete = path.read_bytes()
    path.write_bytes(content)
    cache = graph.PackedCache(str(folder), source=identity(PACKAGED))
    assert executor(cache).packed_from_cache  # hashed again
    assert path.read_bytes() == complete


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_ignored(folder: Path, expected: np.ndarray) -> None:
    (path,) = folder.glob("*.packed")
    os.chown(path, 12345, 12345)
    found = executor(graph.PackedCache(str(folder)))
    assert "belongs to another user" in found.packed_cache_notes[0]
    np.testing.assert_array_equal(logits(found), expected)


@pytest.mark.parametrize("place", ["/dev/null", "/proc/nowhere"])
def test_a_folder_that_cannot_be_written_costs_nothing_else(place: str, expected: np.ndarray) -> None:
    found = executor(graph.PackedCache(place))
    assert "cannot keep packed weights" in found.packed_cache_notes[0]
    np.testing.assert_array_equal(logits(found), expected)


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in ("quire-aaaaaa.part", "quire-bbbbbb.part", "notes.part"))
    for path in (old, young, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (1, 1))
    executor(graph.PackedCache(str(tmp_path)))
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
from quire import LLM, SamplingParams
with LLM(threads=1, n_ctx=256, packed_cache=sys.argv[1]) as model:
    print(len(model.generate("Once", SamplingParams(max_tokens=4))[0].token_ids))
"""


def test_a_file_that_does_not_fit_is_not_left_behind(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"
    assert "[packed-cache] cannot keep packed weights" in done.stderr
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


RACER = """
import sys
from quire import LLM, SamplingParams
with LLM(threads=1, n_ctx=256, packed_cache=sys.argv[1]) as model:
    print(model.generate("Once", SamplingParams(max_tokens=8, temperature=0.0))[0].token_ids)
"""


def test_processes_that_race_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(command, **pipes) for _ in range(4)]
    said = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len(set(said)) == 1, said
    assert said[0][1] == ""
    assert [suffix for suffix in names(tmp_path) if suffix != ".source"] == [".packed"]


def test_the_blocking_front_end_keeps_and_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    with LLM(threads=1, n_ctx=256) as model:
        plain = model.generate("Once", greedy)[0].token_ids
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "quire"), LLM(threads=1, n_ctx=256, packed_cache=tmp_path) as model:
            assert model.generate("Once", greedy)[0].token_ids == plain
    assert caplog.text == ""
    (path,) = tmp_path.glob("*.packed")
    os.truncate(path, 10)
    with caplog.at_level(logging.WARNING, "quire"), LLM(threads=1, n_ctx=256, packed_cache=tmp_path) as model:
        assert model.generate("Once", greedy)[0].token_ids == plain
    assert f"[packed-cache] ignored '{path}'" in caplog.text
