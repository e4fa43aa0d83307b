"""The decoder over models that encode their prompts: what is kept of a source text, shared, taken away and freed.

Oracle: the made-up model's logits (decoder_client.py), whose hashes are of the answer's tokens and, in the layer that reads
the source, of all of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from decoder_client import EOG, N_VOCAB, Client, Layers, comparable, hash_of, mix, mixed_requests, params, prompt
from quire._native.engine import LookupDrafter
from quire._native.testing import CachePool, PoolGroup, Scheduler, SchedulerConfig
from quire.errors import CapacityError, RequestError, UnsupportedError

START = 5
U64 = (1 << 64) - 1
CONFIG: dict[str, object] = {"decoder_start": START}
WINDOWS = {"full": Layers(), "window": Layers(((0, 0), (9, 0)))}


def greedy(source: Sequence[int], n: int, layers: Layers = WINDOWS["full"]) -> list[int]:
    """Return the greedy answer; groups come in the order full, source, window."""
    tokens = [START]
    for _ in range(n):
        seen = [hash_of(tokens[layers.first_seen(group, len(tokens) - 1) :]) for group in sorted(layers.groups)]
        h = hash_of([seen[0], hash_of(source), *seen[1:]])
        row = np.array([(mix((h + v) & U64) >> 40) / 2**21 for v in range(N_VOCAB)], dtype=np.float32)
        row[EOG] = -np.inf
        tokens.append(int(np.argmax(row)))
    return tokens[1:]


def client(layers: Layers = WINDOWS["full"], **options: object) -> Client:
    return Client(config=CONFIG, **{**layers.options(), "reads_source": True, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WINDOWS)
def test_greedy_answers_are_the_models_and_prompts_are_found_again(name: str) -> None:
    sources = [prompt(n, seed=n) for n in (1, 4, 5, 40, 130)]
    with client(WINDOWS[name]) as c:
        for turn in range(2):
            ids = [c.submit(source, params(max_tokens=30)) for source in sources]
            c.run()
            for id_, source in zip(ids, sources, strict=True):
                answer = c.answer(id_)
                assert answer.token_ids == greedy(source, 30, WINDOWS[name])
                assert answer.finish is not None
                assert answer.finish.n_prompt_tokens == len(source)
                assert answer.finish.n_cached_tokens == turn * len(source)
                assert answer.finish.n_generated_tokens == 30
        other = c.submit(sources[4], params(max_tokens=3), salt=b"another")
        longer = c.submit([*sources[3], 1], params(max_tokens=3))
        c.run()
        for id_ in (other, longer):  # they share nothing with the cached source
            finish = c.answer(id_).finish
            assert finish is not None
            assert finish.n_cached_tokens == 0
        c.expect_all_free()


def test_choices_share_a_source() -> None:
    source = prompt(21)
    with client() as c:
        id_ = c.submit(source, params(max_tokens=12, n=4, temperature=1.0, seed=3))
        c.run()
        assert c.decoder.stats().n_computed_tokens == len(source) + 1 + 4 * 11
        together = [c.answer(id_, i).token_ids for i in range(4)]
        assert len({tuple(tokens) for tokens in together}) == 4
        c.expect_all_free()
    with client(max_sequences=1) as c:  # the other choices find the source in the cache
        id_ = c.submit(source, params(max_tokens=12, n=4, temperature=1.0, seed=3))
        c.run()
        assert [c.answer(id_, i).token_ids for i in range(4)] == together
        assert c.decoder.stats().n_computed_tokens == len(source) + 4 * 12
        c.expect_all_free()


def test_a_cache_that_is_too_small_gives_the_answers_of_each_request_alone() -> None:
    requests = [(tokens, sampling) for tokens, sampling in mixed_requests() if sampling.prompt_logprobs is None]
    alone = []
    for tokens, sampling in requests:
        with client(n_blocks=257) as c:
            id_ = c.submit(tokens, sampling)
            c.run()
            alone.append([comparable(c.answer(id_, choice)) for choice in range(sampling.n)])
            assert c.decoder.stats().n_preemptions == 0
    options = {"max_rows": 80, "max_logit_rows": 24, "max_sequences": 16, "budget_bytes": 33 * 64}
    with client(n_blocks=257, **options) as c:
        ids = [c.submit(tokens, sampling) for tokens, sampling in requests]
        c.run()
        for (_, sampling), id_, expected in zip(requests, ids, alone, strict=True):
            assert [comparable(c.answer(id_, choice)) for choice in range(sampling.n)] == expected
        assert c.decoder.stats().n_preemptions > 0
        c.expect_all_free()


def test_a_limit_of_cached_tokens_holds_for_sources() -> None:
    sources = [prompt(n, seed=n) for n in (50, 3, 60, 20, 41)]
    with client(max_kv_tokens=64, max_rows=64) as c:
        ids = [c.submit(source, params(max_tokens=20)) for source in sources]
        c.run()
        for id_, source in zip(ids, sources, strict=True):
            assert c.answer(id_).token_ids == greedy(source, 20)
        with pytest.raises(CapacityError, match=r"\b64 of a step"):
            c.submit(prompt(64), params(max_tokens=2))
        with pytest.raises(CapacityError, match=r"at most 64\b"):
            c.submit(prompt(9), params(max_tokens=80))


def test_a_source_that_fails_ends_its_request_alone() -> None:
    with client(fail_on=62) as c:
        first = c.submit(prompt(12), params(max_tokens=40))
        c.poll()
        bad = c.submit([*prompt(12), 62], params(max_tokens=4))
        c.run()
        assert c.answer(bad).error is not None
        again = c.submit(prompt(13), params(max_tokens=10))
        c.run()
        assert c.answer(again).token_ids == greedy(prompt(13), 10)
        assert c.answer(first).error is not None or c.answer(first).token_ids == greedy(prompt(12), 40)
        c.expect_all_free()


def test_drafts_change_no_answer() -> None:
    source = prompt(15)
    expected = greedy(source, 40)
    with Client(
        config={**CONFIG, "speculation": "lookup", "draft_min": 4},
        drafters=[LookupDrafter()],
        reads_source=True,
        max_kv_tokens=300,
    ) as c:
        id_ = c.submit(source, params(max_tokens=40), prediction=expected)
        c.run()
        assert c.answer(id_).token_ids == expected
        finish = c.answer(id_).finish
        assert finish is not None
        assert finish.n_accepted_tokens > 0
        c.expect_all_free()


def test_unsupported_requests_are_rejected() -> None:
    with client(max_rows=400) as c:
        with pytest.raises(UnsupportedError, match="prompt_logprobs"):
            c.submit(prompt(4), params(prompt_logprobs=1))
        with pytest.raises(RequestError, match=r"257 tokens.* context of 256"):
            c.submit(prompt(257), params(max_tokens=2))
        whole = c.submit(prompt(256), params(max_tokens=300))
        c.run()
        assert len(c.answer(whole).token_ids) == 255  # the context less the start token
    with pytest.raises(RequestError, match="decoder_start"):
        Client(reads_source=True)
    with pytest.raises(RequestError, match="decoder_start"):
        Client(config=CONFIG)
    with pytest.raises(RequestError, match=r"decoder_start is .* less than 64"):
        Client(config={"decoder_start": 64}, reads_source=True)


def test_a_plan_lists_encoded_tokens() -> None:
    pool = CachePool([PoolGroup(17), PoolGroup(17, of_source=True)], block_tokens=4)
    scheduler = Scheduler(SchedulerConfig(max_step_tokens=16, max_running=4), pool)
    with pytest.raises(RequestError, match="source text"):
        scheduler.submit([START], max_tokens=9, now_s=0.0)
    (id_,) = scheduler.submit([START], max_tokens=9, now_s=0.0, source=prompt(9))
    (late,) = scheduler.submit([START], max_tokens=9, now_s=0.0, source=prompt(8))
    plan = scheduler.plan(0.0)
    assert [(item.sequence_id, item.n_encoded, item.n_tokens) for item in plan.items] == [(id_, 9, 1)]  # 6 are left
    assert plan.n_tokens == 10
    source, batch = scheduler.source_batch(plan), scheduler.batch(plan)
    (own, encoded), (_, written) = batch["groups"], source["groups"]
    assert (source["tokens"], source["n_kv"], source["row_begin"]) == (prompt(9), [9], [0, 9])
    assert written["tables"] == encoded["tables"] == scheduler.sequence(id_).tables[1]
    assert [slot // 4 for slot in written["slots"]] == [written["tables"][i // 4] for i in range(9)]
    assert (encoded["n_source"], encoded["slots"], own["n_source"], len(own["slots"])) == ([9], [], [], 1)
    scheduler.commit(plan)
    scheduler.check()
    scheduler.append(id_, 1)
    plan = scheduler.plan(1.0)
    assert [(item.sequence_id, item.n_encoded) for item in plan.items] == [(id_, 0), (late, 8)]
    scheduler.commit(plan)
    for each in (id_, late):
        scheduler.remove(each)
    scheduler.check()
    assert pool.held_bytes == 0
