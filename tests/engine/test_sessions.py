"""Sessions, their forks and pins.

Oracle: a fresh request with the whole history, under a salt of its own so that it finds nothing in the cache.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from quire.engine import LLM, AsyncLLM
from quire.errors import CapacityError, LoadError, RequestError
from tiny_checkpoints import write_checkpoint

pytestmark = pytest.mark.pythons

_SALTS = (f"fresh {i}".encode() for i in itertools.count())
BLOCK = 32


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, n_ctx=512) as model:
        yield model


def ids(n: int, seed: int) -> list[int]:
    return [1 + (i * i * 7 + i * 13 + seed * 101) % 200 for i in range(n)]


def fill_cache(model: LLM, n_tokens: int) -> None:
    """Run prompts that take all memory that nobody holds."""
    n = n_tokens // 64
    for i in range(-(-model.stats().n_usable_blocks * BLOCK // n_tokens) + n):
        model.generate([ids(n_tokens, 1000 + i)], max_tokens=1, temperature=0)


def test_turns_equal_fresh_requests(llm: LLM) -> None:
    with llm.session(ids(100, 1)) as session:
        first = session.generate(max_tokens=8, temperature=0)
        second = session.generate(ids(3, 2), max_tokens=8, temperature=0)
        assert session.token_ids == [*ids(100, 1), *first.token_ids, *ids(3, 2), *second.token_ids]
        history = [*ids(100, 1), *first.token_ids, *ids(3, 2)]
        (fresh,) = llm.generate([history], max_tokens=8, temperature=0, salt=next(_SALTS))
        assert (second.token_ids, fresh.n_cached_tokens) == (fresh.token_ids, 0)
        assert second.n_cached_tokens == len(history) // BLOCK * BLOCK


def test_chats_stream_fork_and_keep_failed_turns_out(llm: LLM) -> None:
    with llm.session([{"role": "system", "content": "Be brief."}]) as session:
        text = "".join(piece.content for piece in session.chat_stream("Hello", max_tokens=6, temperature=0))
        assert [m["role"] for m in session.messages] == ["system", "user", "assistant"]
        assert session.messages[2]["content"] == text
        fork = session.fork()
        answer = fork.chat({"role": "user", "content": "Why?"}, max_tokens=6, temperature=0)
        fresh = llm.chat(fork.messages[:-1], max_tokens=6, temperature=0, salt=next(_SALTS))
        assert answer.token_ids == fresh.token_ids
        assert (len(session.messages), len(fork.messages)) == (3, 5)
        with pytest.raises(RequestError, match="n 2"):
            session.chat("x", n=2)
        with pytest.raises(RequestError, match="raw text"):
            session.generate("x")
        stream = session.chat_stream("x", max_tokens=100, ignore_eos=True)
        next(stream)
        with pytest.raises(RequestError, match="in progress"):
            session.chat("y")
        stream.close()
        assert len(session.messages) == 3
    with pytest.raises(RequestError, match="closed"):
        session.chat("x")


def test_32_forks_run_in_the_memory_of_one_and_a_fifth() -> None:
    prompt, n_new = ids(4000, 3), 8
    n_one = -(-(len(prompt) + 1 + n_new) // BLOCK)
    turns = [[200 + i % 50, 7 + i] for i in range(32)]
    with LLM(threads=1, n_ctx=4096, kv_dtype="f16", n_blocks=int(1.2 * n_one)) as small:
        session = AsyncLLM.sharing(small).session(prompt)

        async def run() -> list[tuple[list[int], int]]:
            forks = [session.fork() for _ in turns]
            calls = [
                fork.generate(turn, max_tokens=n_new, temperature=0) for fork, turn in zip(forks, turns, strict=True)
            ]
            return [(each.token_ids, each.n_cached_tokens) for each in await asyncio.gather(*calls)]

        answers = asyncio.run(run())
        assert sorted(n_cached for _, n_cached in answers) == [0, *[4000] * 31]
        assert small.stats().n_preemptions == 0
        fresh = small.generate([[*prompt, *turns[9]]], max_tokens=n_new, temperature=0, salt=next(_SALTS))
        assert (answers[9][0], fresh[0].n_cached_tokens) == (fresh[0].token_ids, 0)
        assert len({tuple(tokens) for tokens, _ in answers}) > 1
        assert small.stats().n_failed_checks == 0, small.stats().failed_check


@pytest.mark.parametrize("kind", ["rows", "window", "state"])
def test_pinned_prefixes_stay_until_a_request_could_not_run(kind: str, tmp_path: Path) -> None:
    names = {"window": "gemma3", "state": "qwen3next"}
    if kind in names:
        write_checkpoint(tmp_path, names[kind])
    with LLM(tmp_path if kind in names else None, threads=1, n_ctx=512, n_blocks=18, max_sequences=4) as small:
        kept, lost = small.session(ids(128, 1)), small.session(ids(128, 2))
        if kind == "rows":
            with pytest.raises(CapacityError, match="unpin"):
                small.session(ids(480, 4)).pin()
        assert kept.pin() == 128
        lost.generate(max_tokens=1, temperature=0)
        fill_cache(small, 256)
        turns = [each.generate([5], max_tokens=4, temperature=0) for each in (kept, lost)]
        assert [turn.n_cached_tokens for turn in turns] == [128, 0]
        history = [*ids(128, 1), 5]
        (fresh,) = small.generate([history], max_tokens=4, temperature=0, salt=next(_SALTS))
        assert (turns[0].token_ids, fresh.n_cached_tokens) == (fresh.token_ids, 0)
        assert small.stats().n_pins == 1
        (large,) = small.generate([ids(500, 5)], max_tokens=4, temperature=0)
        kept.close()
        (again,) = small.generate([ids(500, 5)], max_tokens=4, temperature=0, salt=next(_SALTS))
        assert large.token_ids == again.token_ids
        stats = small.stats()
        assert (stats.n_pins, stats.n_pinned_bytes) == (0, 0)
        assert stats.n_pins_given_way == (1 if kind == "rows" else stats.n_pins_given_way)
        assert stats.n_failed_checks == 0, stats.failed_check


def test_truncation_drops_only_when_asked(llm: LLM) -> None:
    with pytest.raises(RequestError, match="512"):
        llm.session(ids(600, 1)).generate(max_tokens=4)
    session = llm.session(ids(600, 1), truncation="auto", keep_tokens=10)
    answer = session.generate(max_tokens=4, temperature=0)
    kept = session.token_ids[:-4]
    assert kept == [*ids(600, 1)[:10], *ids(600, 1)[600 - len(kept) + 10 :]]
    assert session.dropped == (f"{600 - len(kept)} tokens",)
    (fresh,) = llm.generate([kept], max_tokens=4, temperature=0, salt=next(_SALTS))
    assert answer.token_ids == fresh.token_ids
    system = {"role": "system", "content": "Be brief."}
    chat = llm.session([system, *({"role": "user", "content": f"{i} " * 60} for i in range(9))], truncation="auto")
    chat.chat("Hello", max_tokens=4)
    assert chat.dropped[0].endswith("oldest messages")


def test_saved_sessions_continue(llm: LLM, tmp_path: Path) -> None:
    chat = llm.session([{"role": "user", "content": "Grüße"}])
    chat.chat(max_tokens=4, temperature=0)
    size = chat.save(tmp_path / "chat")
    again = llm.session(path=tmp_path / "chat")
    assert (again.messages, size) == (chat.messages, (tmp_path / "chat").stat().st_size)
    data = (tmp_path / "chat").read_bytes()
    for at in range(0, len(data), 7):
        (tmp_path / "bad").write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(LoadError, match="bad"):
            llm.session(path=tmp_path / "bad")
        (tmp_path / "bad").write_bytes(data[:at])
        with pytest.raises(LoadError, match="bad"):
            llm.session(path=tmp_path / "bad")
    llm.session("Once").save(tmp_path / "text")
    write_checkpoint(tmp_path / "other", "gemma3")
    with LLM(tmp_path / "other", threads=1, n_ctx=64) as model, pytest.raises(LoadError, match="vocabulary"):
        model.session(path=tmp_path / "text")


@pytest.mark.parametrize("name", ["llama", "qwen3next"])
def test_saved_sessions_bring_their_blocks(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", name)
    sizes = {"threads": 1, "n_ctx": 256, "kv_dtype": "f32"}
    # Models with a cache on disk name their weights; each has a folder of its own, so that only the file brings blocks.
    with LLM(tmp_path / "model", cache_disk=tmp_path / "a", **sizes) as before:  # type: ignore[arg-type]
        session = before.session(ids(150, 1))
        session.generate(max_tokens=8, temperature=0, ignore_eos=True)
        session.save(tmp_path / "saved")
        expected = session.generate([9], max_tokens=8, temperature=0).token_ids
        with pytest.raises(LoadError, match="absent"):
            before.session(path=tmp_path / "absent")
    data = (tmp_path / "saved").read_bytes()
    (tmp_path / "damaged").write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    for saved, n_cached in (("saved", 128), ("damaged", None)):
        with LLM(tmp_path / "model", cache_disk=tmp_path / f"{saved}.cache", **sizes) as after:  # type: ignore[arg-type]
            again = after.session(path=tmp_path / saved).generate([9], max_tokens=8, temperature=0)
            assert again.token_ids == expected
            assert again.n_cached_tokens < 128 if n_cached is None else again.n_cached_tokens >= n_cached
            assert after.stats().n_failed_checks == 0, after.stats().failed_check


@pytest.mark.parametrize(
    ("given", "name"),
    [({"salt": "x"}, "salt"), ({"tools": 5}, "tools"), ({"tools": "ab"}, "tools"), ({"tools": [5]}, "tools")],
)
def test_sessions_refuse_what_their_turns_would(llm: LLM, given: dict[str, object], name: str) -> None:
    with pytest.raises(RequestError, match=name):
        llm.session(**given)  # type: ignore[arg-type]


def test_a_salt_is_bytes(llm: LLM) -> None:
    with pytest.raises(RequestError, match="salt 'x'"):
        llm.generate("Hello", salt="x")  # type: ignore[arg-type]
