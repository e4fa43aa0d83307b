"""The tiers below the block pool: what they keep is found again, and nothing else is.

Oracle: the made-up model's logits are known without a cache (decoder_client.py); a block with other contents than its
name says gives other ones, and the executor throws where a state or a row is another position's.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from decoder_client import Client, Layers, comparable, greedy_without_eog, mixed_requests, params, prompt
from quire._native.engine import CacheTiersConfig, prefix_note
from quire.errors import CapacityError, LoadError, RequestError

LAYERS = {
    "full": Layers(),
    "window": Layers(((0, 0), (9, 0))),
    "window-alone": Layers(((7, 0),)),
    "state": Layers(((0, 0),), has_state=True),
    "window-chunk-state": Layers(((0, 16), (10, 0)), has_state=True),
}


def client(
    folder: Path | None,
    layers: Layers = LAYERS["full"],
    *,
    ram: int = 0,
    disk_bytes: int = 1 << 30,
    model: bytes = b"model",
    always_reads: bool = True,
    n_ctx: int = 256,
    **executor: object,
) -> Client:
    tiers = CacheTiersConfig(
        ram_bytes=ram,
        disk_folder="" if folder is None else str(folder),
        disk_bytes=disk_bytes,
        model=model,
        always_reads=always_reads,
    )
    config = {"snapshot_tokens": 8, "tiers": tiers}
    return Client(n_ctx=n_ctx, config=config, **{"n_states": 65, **layers.options(), **executor})


def ask(client: Client, tokens: list[int], layers: Layers = LAYERS["full"], **options: object) -> tuple[int, int]:
    """Return the tokens found in the cache and those found on disk, of a request with the right answer."""
    id_ = client.submit(tokens, params(max_tokens=10), **options)
    client.run()
    answer = client.answer(id_)
    assert answer.token_ids == greedy_without_eog(tokens, 10, layers)
    assert answer.finish is not None
    return answer.finish.n_cached_tokens, answer.finish.n_disk_tokens


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))


@pytest.mark.parametrize("name", LAYERS)
def test_a_conversation_continues_after_a_restart(name: str, tmp_path: Path) -> None:
    layers, text = LAYERS[name], prompt(101, seed=1)
    with client(tmp_path, layers) as first:
        assert ask(first, text, layers) == (0, 0)
        text += greedy_without_eog(text, 10, layers)
    with client(tmp_path, layers) as second:
        assert ask(second, text, layers) == (108, 108)  # of 111: less than a block is computed again
        stats = second.decoder.stats()
        assert stats.n_disk_hit_tokens == stats.n_prefix_hit_tokens == 108
        assert ask(second, text, layers) == (108, 0)  # in the pool by now
        second.expect_all_free()


def test_entries_are_private_and_of_one_tenant_and_model(tmp_path: Path) -> None:
    folder, text = tmp_path / "cache", prompt(40)
    with client(folder) as first:
        ask(first, text, salt=b"a")
    assert {path.stat().st_mode & 0o777 for path in entries(folder)} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")] if path.is_dir()} == {0o700}
    for model, block_tokens, n_found in [(b"model", 4, 36), (b"other", 4, 0), (b"model", 8, 0)]:
        with client(folder, model=model, block_tokens=block_tokens) as other:
            assert ask(other, text, salt=b"b") == (0, 0)
            assert ask(other, text, salt=b"a") == (n_found, n_found)
    folder.chmod(0o720)
    with pytest.raises(LoadError, match="other users may write"):
        client(folder)


def checksum(data: bytes) -> int:
    """Return native/kv/tier_record.cpp's checksum."""
    mask = (1 << 64) - 1

    def add(lane: int, word: int) -> int:
        mixed = (lane ^ word) * 0x9FB21C651E98DF25 & mask
        return (mixed << 29 | mixed >> 35) & mask

    lanes = [1, 2, 3, 4]
    whole = len(data) // 32 * 32
    padded = data[:whole] + data[whole:].ljust(32, b"\0")  # the tail counts even if it is empty
    for at in range(0, len(padded), 8):
        lanes[at // 8 % 4] = add(lanes[at // 8 % 4], int.from_bytes(padded[at : at + 8], "little"))
    result = len(data)
    for lane in lanes:
        result = add(result, lane ^ lane >> 32)
    return result ^ result >> 32


@pytest.mark.parametrize("name", ["window", "state"])
def test_a_block_without_numbers_is_a_miss(name: str, tmp_path: Path) -> None:
    layers, text = LAYERS[name], prompt(60)
    with client(tmp_path, layers) as first:
        ask(first, text, layers)
        first.decoder.export_prefix(text, str(tmp_path / "prefix"))
    files = entries(tmp_path)
    for path in files:
        data = bytearray(path.read_bytes())
        assert int.from_bytes(data[32:40], "little") == checksum(data[128:])
        data[-4:] = b"\xff\xff\xff\x7f"
        data[32:40] = checksum(data[128:]).to_bytes(8, "little")
        data[104:112] = checksum(data[:104]).to_bytes(8, "little")
        path.write_bytes(data)
    with client(tmp_path, layers) as second:
        assert ask(second, text, layers) == (0, 0)
        assert second.decoder.stats().tiers.disk.n_damaged > 0
    with client(tmp_path, layers) as third:
        assert ask(third, text, layers) == (56, 56)  # written again


def test_speeds_are_known_after_a_restart(tmp_path: Path) -> None:
    text = prompt(101)
    with client(tmp_path, always_reads=False) as first:
        ask(first, text)
    with client(tmp_path, always_reads=False) as second:
        assert ask(second, text)[1] == 100
        known = second.decoder.stats().tiers
        assert known.read_bytes_per_s > 0
        assert known.compute_tokens_per_s > 0
    with client(tmp_path, always_reads=False) as third:
        stats = third.decoder.stats().tiers
        assert stats.read_bytes_per_s == pytest.approx(known.read_bytes_per_s, rel=1e-4)
        assert stats.compute_tokens_per_s == pytest.approx(known.compute_tokens_per_s, rel=1e-4)
    (path,) = tmp_path.rglob("speeds")
    for read_s, n_found in ((1, 0), (1e-12, 100)):
        path.write_text(f"quire speeds 1 {read_s} 1e-6\n")
        with client(tmp_path, always_reads=False) as again:
            assert ask(again, text)[1] == n_found
    for damaged in ("", "quire speeds 1 nan -1", "quire speeds 2 1 1", "x" * 200):
        path.write_text(damaged)
        with client(tmp_path, always_reads=False) as again:
            assert again.decoder.stats().tiers.read_bytes_per_s == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "swap", "lose", "empty"])
def test_damage_is_a_miss(damage: str, tmp_path: Path) -> None:
    layers, text = LAYERS["state"], prompt(60)
    with client(tmp_path, layers) as first:
        ask(first, text, layers)
    files = entries(tmp_path)
    rng = random.Random(5)
    for path, other in zip(files, files[1:] + files[:1], strict=True):
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif damage == "cut":
            del data[rng.randrange(len(data)) :]
        path.write_bytes(b"" if damage == "empty" else other.read_bytes() if damage == "swap" else data)
        if damage == "lose":
            path.unlink()
    with client(tmp_path, layers) as second:
        assert ask(second, text, layers) == (0, 0)
    with client(tmp_path, layers) as third:
        assert ask(third, text, layers) == (56, 56)  # written again


def test_the_folder_keeps_to_its_budget_and_loses_the_oldest(tmp_path: Path) -> None:
    texts = [prompt(41, seed=seed) for seed in range(8)]
    with client(tmp_path, disk_bytes=30 * 160) as first:  # an entry of 4 tokens takes 160 bytes, a text 10 or 12
        for text in texts:
            ask(first, text)
            time.sleep(0.02)
    assert 0 < sum(path.stat().st_size for path in tmp_path.rglob("*.*")) <= 30 * 160
    with client(tmp_path, always_reads=True) as second:
        assert ask(second, texts[-1]) == (40, 40)
        assert ask(second, texts[0]) == (0, 0)


def test_closing_tells_which_files_were_used_last(tmp_path: Path) -> None:
    old, new = prompt(41, seed=1), prompt(41, seed=2)
    with client(tmp_path) as first:
        ask(first, old)
        until(lambda: len(entries(tmp_path)) == 12)
        of_old = entries(tmp_path)
        ask(first, new)
        until(lambda: len(entries(tmp_path)) == 24)
        ask(first, old)  # from the pool: nothing is read
    used = {path: path.stat().st_mtime_ns for path in entries(tmp_path)}
    last_of_new = max(used[path] for path in used if path not in of_old)
    assert sum(used[path] > last_of_new for path in of_old) == 10  # those of the prompt


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "quire-abc.part"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    with client(tmp_path) as first:
        ask(first, prompt(40))
    assert not left.exists()


def limited_files(size_bytes: int) -> Callable[[], None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_a_miss(tmp_path: Path) -> None:
    text, restore = prompt(60), limited_files(100)
    try:
        with client(tmp_path) as first:
            ask(first, text)
            stats = first.decoder.stats()
    finally:
        restore()
    assert stats.tiers is not None
    assert list(tmp_path.rglob("*.*")) == []
    with client(tmp_path) as second:
        assert ask(second, text) == (0, 0)


def test_two_decoders_share_a_folder(tmp_path: Path) -> None:
    text = prompt(60)
    with client(tmp_path) as first, client(tmp_path) as second:
        ask(first, text)
        until(lambda: len(entries(tmp_path)) >= 17)
        assert ask(second, text + prompt(9, seed=2)) == (68 // 4 * 4 - 8, 60)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["full", "window-chunk-state"])
def test_memory_of_the_host_keeps_the_hits_of_a_pool_that_is_too_small(name: str) -> None:
    layers = LAYERS[name]
    texts = [prompt(61, seed=seed) for seed in range(32)]
    n_blocks = 32 * 18 // 10  # a tenth of the working set
    with client(None, layers, ram=1 << 20, n_blocks=n_blocks, n_states=20, max_sequences=2) as host:
        for text in texts:
            assert ask(host, text, layers)[0] == 0
        n_found = [ask(host, text, layers)[0] for text in texts]
        assert sum(n_found) >= 0.8 * 60 * len(texts)
        stats = host.decoder.stats()
        assert stats.n_host_hit_tokens >= 0.8 * 60 * len(texts)
        assert stats.tiers is not None
        assert stats.tiers.host is not None
        assert stats.tiers.host.used_bytes <= 1 << 20
        host.expect_all_free()


@pytest.mark.parametrize("name", LAYERS)
def test_tiers_change_no_answer(name: str, tmp_path: Path) -> None:
    layers, requests = LAYERS[name], mixed_requests()[:20]
    with Client(config={"snapshot_tokens": 8}, n_states=65, **layers.options()) as plain:
        ids = [plain.submit(tokens, sampling) for tokens, sampling in requests]
        plain.run()
        expected = [
            [comparable(plain.answer(id_, i)) for i in range(s.n)] for id_, (_, s) in zip(ids, requests, strict=True)
        ]
    for _ in range(2):  # the second time everything is on disk
        with client(tmp_path, layers, ram=2000, n_blocks=40, n_states=20, max_rows=64, max_sequences=16) as small:
            ids = [small.submit(tokens, sampling) for tokens, sampling in requests]
            small.run()
            found = [
                [comparable(small.answer(id_, i)) for i in range(s.n)]
                for id_, (_, s) in zip(ids, requests, strict=True)
            ]
            assert found == expected
            small.expect_all_free()


def test_a_cancelled_request_gives_up_its_reads(tmp_path: Path) -> None:
    text = prompt(200)
    with client(tmp_path, n_ctx=512) as first:
        ask(first, text)
    with client(tmp_path, n_ctx=512) as second:
        ids = [second.submit([*text, i], params()) for i in range(4)]
        for id_ in ids[:3]:
            second.decoder.cancel(id_)
        second.run()
        assert second.answer(ids[3]).token_ids == greedy_without_eog([*text, 3], 8)
        second.expect_all_free()


def test_reading_is_chosen_only_if_it_is_faster(tmp_path: Path) -> None:
    texts = [prompt(200, seed=seed) for seed in range(3)]
    with client(tmp_path, n_ctx=512) as first:
        for text in texts:
            ask(first, text)
    for step_s, reads in [(0.1, True), (0.0, False)]:
        with client(tmp_path, n_ctx=512, step_s=step_s, always_reads=False) as second:
            ask(second, prompt(200, seed=9 + reads))  # tells how fast it computes
            ask(second, texts[0])  # tells how fast it reads
            found = ask(second, texts[1])
            stats = second.decoder.stats().tiers
            assert stats is not None
            faster = stats.read_bytes_per_s / 32 * 4 > stats.compute_tokens_per_s
            if faster == reads:  # an empty step may take as long as a file
                assert found == ((200 - 4, 200 - 4) if reads else (0, 0))
            assert reads <= faster


def test_a_prefix_goes_to_a_file_and_back(tmp_path: Path) -> None:
    layers, text = LAYERS["window-chunk-state"], prompt(101)
    path = str(tmp_path / "session")
    with client(None, layers) as first:
        ask(first, text, layers, salt=b"a")
        assert first.decoder.export_prefix(text, path, salt=b"a", note=b"mine") == 100
        with pytest.raises(RequestError, match="not in the cache"):
            first.decoder.export_prefix(text, path, salt=b"b")
        restore = limited_files(100)
        try:
            with pytest.raises(CapacityError, match="session"):
                first.decoder.export_prefix(text, path, salt=b"a")
        finally:
            restore()
    assert prefix_note(path) == b"mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "session"]
    with client(None, layers) as second:
        assert second.decoder.import_prefix(text, path, salt=b"b") == 0  # another tenant's
        assert second.decoder.import_prefix(text, path, salt=b"a") == 100
        assert ask(second, text, layers, salt=b"a") == (100, 0)
    with client(None, layers, model=b"other") as third, pytest.raises(LoadError, match="another model"):
        third.decoder.import_prefix(text, path, salt=b"a")
    data = bytearray(Path(path).read_bytes())
    rng = random.Random(1)
    with client(None, layers) as fourth:
        for _ in range(20):
            at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
            data[at] ^= bit
            Path(path).write_bytes(data)
            with pytest.raises(LoadError):
                fourth.decoder.import_prefix(text, path, salt=b"a")
            data[at] ^= bit
        assert ask(fourth, text, layers, salt=b"a")[0] <= 100


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from decoder_client import prompt
from test_cache_tiers import ask, client
with client(Path(sys.argv[1]), n_ctx=512) as writer:
    for seed in range(10**6):
        ask(writer, prompt(200, seed=seed))
        print(seed, flush=True)
"""


def kills(folder: Path, n: int, seed: int) -> int:
    """Kill writers at random moments, and return the number of entries that the last reader found."""
    rng = random.Random(seed)
    support = Path(__file__).parents[1] / "support"
    code = WRITER.format(paths=[str(support), str(Path(__file__).parent)])
    n_found = 0
    for _ in range(n):
        with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(rng.random() * 0.2)
            writer.send_signal(signal.SIGKILL)
            n_texts = writer.stdout.read().count(b"\n")
        with client(folder, n_ctx=512) as reader:
            for text in range(n_texts + 2):
                n_found += ask(reader, prompt(200, seed=text))[1]
            stats = reader.decoder.stats().tiers
            assert stats is not None
            assert stats.disk is not None
            assert stats.disk.n_damaged == 0
        shutil.rmtree(folder)
    return n_found


def test_killed_writers_leave_no_bad_entry(tmp_path: Path) -> None:
    assert kills(tmp_path / "cache", 1, seed=3) > 0
