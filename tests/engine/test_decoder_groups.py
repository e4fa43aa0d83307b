"""The decoder over models whose layers keep different things: windows, chunks, recurrent states, nothing.

Oracle: the made-up model's logits are known without a cache (decoder_client.py); a layer that saw another token, or a
state after another number of tokens, would give other ones.
"""

from __future__ import annotations

import random

import pytest
from decoder_client import EOG, Client, Layers, comparable, greedy_without_eog, mixed_requests, params, prompt
from quire._native.engine import Decoder, DecoderConfig, Request, VocabInfo
from quire._native.testing import FakeExecutor
from quire.errors import CapacityError

LAYERS = {
    "window": Layers(((0, 0), (9, 0), (9, 0))),
    "window-alone": Layers(((7, 0),)),
    "state": Layers(((0, 0),), has_state=True),
    "state-alone": Layers((), has_state=True),
    "window-chunk-state": Layers(((0, 16), (10, 0)), has_state=True),
}


@pytest.mark.parametrize("name", ["window", "state", "window-chunk-state"])
def test_greedy_answers_are_the_models(name: str) -> None:
    layers = Layers(tuple(dict.fromkeys(LAYERS[name].groups)), LAYERS[name].has_state)
    prompts = [prompt(n, seed=n) for n in (1, 4, 5, 40)]
    with Client(**layers.options(), n_states=65, config={"snapshot_tokens": 8}) as client:
        for _ in range(2):  # the second round hits the cache
            ids = [client.submit(tokens, params(max_tokens=30)) for tokens in prompts]
            client.run()
            for id_, tokens in zip(ids, prompts, strict=True):
                assert client.answer(id_).token_ids == greedy_without_eog(tokens, 30, layers)
        finish = client.answer(ids[-1]).finish
        assert finish is not None
        assert finish.n_cached_tokens == 36
        client.expect_all_free()


@pytest.mark.parametrize("name", LAYERS)
def test_a_cache_that_is_too_small_gives_the_answers_of_each_request_alone(name: str) -> None:
    requests = mixed_requests()[:20]
    options = LAYERS[name].options()
    alone = []
    for tokens, sampling in requests:
        with Client(n_blocks=257, **options) as client:
            id_ = client.submit(tokens, sampling)
            client.run()
            alone.append([comparable(client.answer(id_, choice)) for choice in range(sampling.n)])
            assert client.decoder.stats().n_preemptions == 0
    executor = {"max_rows": 64, "max_logit_rows": 24, "max_sequences": 16, "n_states": 20, **options}
    # A block has 32 bytes in each layer, a state 24.  The longest request takes 28 blocks, or 19 to 21
    # in a group with a limit.
    budget_bytes = {
        "window": 3120,
        "window-alone": 910,
        "state": 1920,
        "state-alone": 374,
        "window-chunk-state": 1950,
    }[name]
    with Client(n_blocks=257, budget_bytes=budget_bytes, config={"snapshot_tokens": 16}, **executor) as client:
        ids = [client.submit(tokens, sampling) for tokens, sampling in requests]
        client.run()
        for (_, sampling), id_, expected in zip(requests, ids, alone, strict=True):
            assert [comparable(client.answer(id_, choice)) for choice in range(sampling.n)] == expected
        stats = client.decoder.stats()
        if name == "state":
            assert stats.n_prefix_hit_tokens > 0
            assert stats.n_preemptions > 0
        client.expect_all_free()


def test_conversations_take_turns_over_the_cache() -> None:
    layers = Layers(((0, 0), (12, 0)), has_state=True)
    rng = random.Random(3)
    texts = [prompt(rng.randrange(5, 60), seed=i) for i in range(32)]
    n_before = [0] * len(texts)
    with Client(n_ctx=512, n_blocks=2000, n_states=500, max_sequences=8, **layers.options()) as client:
        for turn in range(4):
            ids = [client.submit(text, params(max_tokens=10 + i % 7)) for i, text in enumerate(texts)]
            client.run()
            for i, (id_, text) in enumerate(zip(ids, texts, strict=True)):
                answer = client.answer(id_)
                assert answer.finish is not None
                assert n_before[i] - answer.finish.n_cached_tokens < 4  # less than a block
                assert answer.token_ids == greedy_without_eog(text, 10 + i % 7, layers)
            n_before = [len(text) + 10 + i % 7 - 1 for i, text in enumerate(texts)]
            texts = [
                [*text, *client.answer(id_).token_ids, *prompt(rng.randrange(1, 20), seed=100 * turn + i)]
                for i, (id_, text) in enumerate(zip(ids, texts, strict=True))
            ]
        stats = client.decoder.stats()
        assert (stats.n_preemptions, stats.n_recomputed_tokens) == (0, 0)
        assert stats.cache.n_snapshots > 32
        client.expect_all_free()


def test_the_ends_of_messages_are_found() -> None:
    layers = Layers(((0, 0),), has_state=True)
    with Client(**layers.options()) as client:
        for positions, n_cached in (((), 0), ((22,), 20)):
            client.submit(prompt(41, seed=n_cached), params(max_tokens=3), snapshot_positions=positions)
            client.run()
            other = [*prompt(41, seed=n_cached)[:23], *prompt(9)]
            id_ = client.submit(other, params(max_tokens=5))
            client.run()
            finish = client.answer(id_).finish
            assert finish is not None
            assert finish.n_cached_tokens == n_cached
            assert client.answer(id_).token_ids == greedy_without_eog(other, 5, layers)


def test_messages_end_where_generations_would() -> None:
    """An unmarked chat keeps states after its first message and after the last two."""
    layers = Layers(((0, 0),), has_state=True)
    chat = [*prompt(10), EOG, *prompt(9, seed=1), EOG, *prompt(11, seed=2), EOG, *prompt(6, seed=3), EOG, *prompt(9)]
    with Client(**layers.options()) as client:
        client.submit(chat, params(max_tokens=3))
        client.run()
        for n_same, n_cached in ((12, 8), (24, 8), (34, 32), (41, 40), (48, 48)):
            other = [*chat[:n_same], 7, 7, 7, 7, 7]
            id_ = client.submit(other, params(max_tokens=5))
            client.run()
            finish = client.answer(id_).finish
            assert finish is not None
            assert finish.n_cached_tokens == n_cached
            assert client.answer(id_).token_ids == greedy_without_eog(other, 5, layers)


def test_a_failed_step_harms_no_state_of_others() -> None:
    layers = Layers(((0, 0),), has_state=True)
    with Client(fail_on=62, **layers.options()) as client:
        client.submit(prompt(12), params(max_tokens=4))
        client.run()
        bad = client.submit([*prompt(12), 62, 1], params(max_tokens=4))
        client.run()
        assert client.answer(bad).error is not None
        good = client.submit([*prompt(12), 1], params(max_tokens=10))
        client.run()
        assert client.answer(good).token_ids == greedy_without_eog([*prompt(12), 1], 10, layers)
        finish = client.answer(good).finish
        assert finish is not None
        assert finish.n_cached_tokens == 12
        client.expect_all_free()


def test_a_failed_copy_ends_what_ran_and_forgets_what_was_cached() -> None:
    layers = Layers(((0, 0),), has_state=True)
    with Client(fail_copy=6, step_s=0.02, **layers.options()) as client:  # the copy fails while both are running
        ids = [client.submit(prompt(12, seed=seed), params(max_tokens=30)) for seed in (0, 1)]
        client.run()
        errors = [client.answer(id_).error for id_ in ids]
        assert [error and error.error_kind for error in errors] == ["CapacityError"] * 2
        assert client.decoder.stats().n_failed_steps == 1
        again = client.submit(prompt(12), params(max_tokens=30))
        client.run()
        finish = client.answer(again).finish
        assert finish is not None
        assert finish.n_cached_tokens == 0
        assert client.answer(again).token_ids == greedy_without_eog(prompt(12), 30, layers)
        client.expect_all_free()


def test_an_encoders_prompt_is_one_item_of_one_step() -> None:
    executor = FakeExecutor(layers=[], undivided_prompts=True, max_rows=32, max_logit_rows=32)
    vocab = VocabInfo(64, [63], [b"x"] * 64)
    decoder = Decoder(executor, vocab, DecoderConfig(n_ctx=100))
    try:
        with pytest.raises(CapacityError, match=r"40 tokens.* 32 "):
            decoder.submit(Request(prompt(40), prompt_logits=True))
        ids = [decoder.submit(Request(prompt(n), prompt_logits=True)) for n in (20, 25, 3, 20)]
        rows: dict[int, list[int]] = {id_: [] for id_ in ids}
        n_ended = 0
        while n_ended < len(ids):
            for event in decoder.wait(5.0):
                if event.kind == "prompt_logits":
                    rows[event.request_id].append(len(event.logits))
                assert event.kind != "error", event.error
                n_ended += event.kind == "finish"
        assert [rows[id_] for id_ in ids] == [[20], [25], [3], [20]]
    finally:
        decoder.close()
