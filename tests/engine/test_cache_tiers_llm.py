"""The cache's tiers behind LLM: restarts, model swaps, devices.

Oracle: the same model without a cache on disk.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from counting_device import counting_device
from quire.engine import LLM
from quire.engine.loading import cache_identity as cache_identity_module
from quire.engine.loading.cache_identity import cache_identity, files_digest
from quire.engine.loading.loader import packaged_model
from quire.engine.prefix_blocks import PrefixBlocks
from quire.engine.requests.prompts import RequestOptions
from quire.errors import LoadError, RequestError
from quire.files.gguf import GGUFReader
from quire.params.engine_options import EngineConfig
from tiny_checkpoints import write_checkpoint

BLOCK = 32
TEXT = [1 + (i * i * 7 + i * 13) % 200 for i in range(333)]


def ask(model: LLM, tokens: list[int]) -> tuple[list[int], int, int]:
    (result,) = model.generate([tokens], max_tokens=8, temperature=0)
    return result.token_ids, result.n_cached_tokens, result.n_disk_tokens


def test_a_restart_computes_less_than_a_block(tmp_path: Path) -> None:
    options = {"threads": 1, "n_ctx": 512, "kernels": "cpu", "kv_dtype": "q8_0"}
    with LLM(**options) as plain:  # type: ignore[arg-type]
        first = ask(plain, TEXT)[0]
        text = [*TEXT, *first, 5, 6, 7]
        second = ask(plain, text)[0]
    with LLM(**options, cache_disk=tmp_path) as model:  # type: ignore[arg-type]
        assert ask(model, TEXT) == (first, 0, 0)
    n_found = len(text) // BLOCK * BLOCK
    with LLM(**options, cache_disk=tmp_path) as model:  # type: ignore[arg-type]
        assert ask(model, text) == (second, n_found, n_found)
    with LLM(**{**options, "kv_dtype": "f32"}, cache_disk=tmp_path) as model:  # type: ignore[arg-type]
        assert ask(model, text)[1:] == (0, 0)


@pytest.mark.parametrize("name", ["gemma3", "qwen3next"])
def test_windows_and_states_of_a_checkpoint_folder(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", name)
    options = {"threads": 1, "n_ctx": 256, "kv_dtype": "f32"}
    text = [token % 250 for token in TEXT[:201]]
    with LLM(tmp_path / "model", **options) as plain:  # type: ignore[arg-type]
        expected = ask(plain, text)[0]
    for n_found in (0, 192):
        with LLM(tmp_path / "model", **options, cache_disk=tmp_path / "cache") as model:  # type: ignore[arg-type]
            assert ask(model, text) == (expected, n_found, n_found)


@pytest.mark.parametrize("name", ["gemma3", "qwen3next"])
def test_a_peer_gives_what_windows_and_states_need(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", name)
    options = {"threads": 1, "n_ctx": 256, "kv_dtype": "f32"}
    text = [token % 250 for token in TEXT[:201]]
    with LLM(tmp_path / "model", **options, cache_disk=tmp_path / "there") as model:  # type: ignore[arg-type]
        expected = ask(model, text)[0]
    files = {path.stem: path for path in (tmp_path / "there").rglob("*.kv")}
    with LLM(tmp_path / "model", **options, cache_disk=tmp_path / "here") as model:  # type: ignore[arg-type]
        blocks = PrefixBlocks(model._engine)
        assert (tmp_path / "there" / blocks.cache_identity()).is_dir()
        request = model._prompts.request(text, None, RequestOptions())
        n_missing, names = blocks.find_missing(request)
        held = [name for name in names if name in files]
        assert (n_missing, blocks.find_missing(request, [])) == (192, (0, []))
        assert blocks.find_missing(request, ["x", "00" * 32, "00" * 32 + "-99999999999", *held[:-1]])[0] < 192
        n_found, needed = blocks.find_missing(request, held)
        assert n_found == 192
        assert set(needed) <= set(held)
        record = files[needed[0]].read_bytes()
        blocks.check_header(record[:128])
        for bad in (b"", record[:127], b"x" + record[1:128], record[:24] + b"\xff" * 8 + record[32:128]):
            with pytest.raises(LoadError):
                blocks.check_header(bad)
        for bad in (b"", record[:-1], record + b"x", record[:-1] + bytes([record[-1] ^ 1]), b"x" + record[1:]):
            with pytest.raises(LoadError):
                blocks.keep_record(bad)
        assert all(blocks.keep_record(files[name].read_bytes()) for name in needed)
        assert blocks.find_missing(request)[0] == 0
        assert ask(model, text) == (expected, 192, 192)
        other = model._prompts.request(text, None, RequestOptions(salt=b"another"))
        assert blocks.find_missing(other, held) == (0, [])


@pytest.mark.parametrize("n_layers", [None, 3])
def test_memory_of_the_host_keeps_the_hits_of_a_device(n_layers: int | None) -> None:
    counting_device()
    texts = [[1 + (i * i * seed + i * 5) % 200 for i in range(100)] for seed in range(12)]
    options = {
        "device": "Counting0",
        "fit_target": 0,
        "threads": 1,
        "n_ctx": 128,
        "max_sequences": 1,
        "kv_dtype": "f32",
    }
    n_blocks = 6  # the texts take 48
    with LLM(**options, n_gpu_layers=n_layers, n_blocks=n_blocks, cache_ram=1 << 30) as model:  # type: ignore[arg-type]
        answers = [ask(model, text)[0] for text in texts]
        again = [ask(model, text) for text in texts]
        assert [found[0] for found in again] == answers
        assert sum(found[1] for found in again) >= 0.8 * 96 * len(texts)
        stats = model.stats()
        assert stats.n_host_hit_tokens >= 0.8 * 96 * len(texts)
        assert stats.tiers is not None
        assert stats.tiers.host is not None
        assert 0 < stats.tiers.host.used_bytes <= stats.tiers.host.budget_bytes


def test_the_identity_tells_all_that_numbers_depend_on(tmp_path: Path) -> None:
    def identity(path: Path | None = None, **options: object) -> bytes:
        reader, config = GGUFReader(path or packaged_model()), EngineConfig(**options)  # type: ignore[arg-type]
        return cache_identity(
            reader, config, n_ctx=64, fit=None, kernel_set=None, devices=["CPU"], media=None, merges_adapters=True
        )

    usual = identity()
    assert usual == identity(threads=2, n_ctx=99, draft_max=3, cache_ram="1G", policy="dynamic")
    copy = tmp_path / "copy.gguf"
    data = bytearray(packaged_model().read_bytes())
    copy.write_bytes(data)
    os.utime(copy, (1, 1))
    assert identity(copy) == usual  # as on another machine
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    os.utime(copy, (1, 1))
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"one")
    others = [
        identity(copy), identity(override_kv=(("llama.rope.freq_base", 5000.0),)), identity(rope_scale=2.0),
        identity(adapters=((str(adapter), 1.0),)), identity(adapters=((str(adapter), 0.5),)),
    ]  # fmt: skip
    assert len({usual, *others}) == 1 + len(others)
    assert files_digest([]) == b""


def test_files_are_read_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_identity_module, "_YOUNG_S", -1e9)
    monkeypatch.setattr(cache_identity_module, "_PIECE_BYTES", 3000)
    monkeypatch.setattr(cache_identity_module, "_READ_BYTES", 700)
    reads: list[Path] = []
    digest = cache_identity_module._content_digest
    monkeypatch.setattr(
        cache_identity_module, "_content_digest", lambda path, size: reads.append(path) or digest(path, size)
    )
    one, other, known = tmp_path / "one", tmp_path / "other", tmp_path / "cache" / "digests"
    data = bytearray(np.random.default_rng(0).bytes(10_000))
    one.write_bytes(data)
    found = {at: [] for at in (0, 2999, 3000, 5000, 9999)}
    first = files_digest([one], known)
    assert (files_digest([one], known), len(reads)) == (first, 1)
    assert {each.stat().st_mode & 0o777 for each in (known, known.parent)} == {0o700}  # others cannot change them
    for at in found:  # every byte counts, and times of modification that were set back do not help
        changed = bytearray(data)
        changed[at] ^= 1
        time_ns = one.stat().st_mtime_ns
        with one.open("r+b") as file:
            file.write(changed)
        os.utime(one, ns=(time_ns, time_ns))
        found[at] = [files_digest([one], known), files_digest([one])]
        assert found[at][0] == found[at][1]
    assert len({first, *(each[0] for each in found.values())}) == 1 + len(found)
    other.write_bytes(data)
    assert files_digest([other], known) == first
    for each in known.iterdir():  # whatever happens to them
        each.write_text("damaged")
    assert files_digest([other], known) == first
    monkeypatch.setattr(cache_identity_module, "_YOUNG_S", 1e9)
    n_kept = len(list(known.iterdir()))
    (tmp_path / "young").write_bytes(data)
    assert (files_digest([tmp_path / "young"], known), len(list(known.iterdir()))) == (first, n_kept)


@pytest.mark.parametrize(("given", "expected"), [("16G", 16 << 30), ("500MiB", 500 << 20), (1 << 20, 1 << 20)])
def test_sizes_have_units(given: object, expected: int) -> None:
    assert EngineConfig(cache_disk_size=given).cache_disk_size == expected  # type: ignore[arg-type]
    assert EngineConfig(cache_ram=512).cache_ram == 512 << 20  # as llama.cpp's
    for wrong in ("16 apples", "-1", 5, 1.5):
        with pytest.raises(RequestError, match="cache_disk_size"):
            EngineConfig(cache_disk_size=wrong)  # type: ignore[arg-type]


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(LoadError, match="other users may write"):
        LLM(threads=1, n_ctx=64, cache_disk=tmp_path)
    with pytest.raises(RequestError, match="NUL"):
        EngineConfig(cache_disk=f"{tmp_path}\0x")
    with pytest.raises(LoadError, match="empty"):
        LLM(threads=1, n_ctx=64, cache_disk="")
