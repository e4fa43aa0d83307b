"""The decoder's thread over a made-up model (decoder_client.py).

Sampled answers are compared with those of the same request alone in a decoder with room to spare.
"""

from __future__ import annotations

import asyncio
import ctypes
import select
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from decoder_client import (
    ACCENT,
    EOG,
    N_VOCAB,
    Client,
    comparable,
    greedy_without_eog,
    log_softmax,
    logits_after,
    mixed_requests,
    params,
    prompt,
    text_of,
)
from quire._native.engine import Event, Request, SamplingParams
from quire.errors import CapacityError, RequestError, ShapeError


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as client:
        yield client
        if not any(client.open.values()):
            client.expect_all_free()


def test_greedy_answers_are_the_models(client: Client) -> None:
    prompts = [prompt(n, seed=n) for n in (1, 4, 5, 40)]
    ids = [client.submit(tokens, params(max_tokens=12)) for tokens in prompts]
    client.run()
    for id_, tokens in zip(ids, prompts, strict=True):
        answer = client.answer(id_)
        expected = greedy_without_eog(tokens, 12)
        assert answer.token_ids == expected
        assert answer.text == text_of(expected)
        assert answer.finish is not None
        assert (answer.finish.finish_reason, answer.finish.stop_reason) == ("length", None)
        assert answer.finish.n_prompt_tokens == len(tokens)
        assert answer.finish.n_generated_tokens == 12
        timings = answer.finish.timings
        assert min(timings.queue_s, timings.prefill_s, timings.decode_s) >= 0
        assert timings.prefill_s + timings.decode_s < 30


@pytest.mark.parametrize("policy", ["fifo", "shortest-first", "priority", "dynamic"])
def test_a_pool_that_is_too_small_gives_the_answers_of_each_request_alone(policy: str) -> None:
    requests = mixed_requests()
    alone = []
    for tokens, sampling in requests:
        with Client(n_blocks=257) as client:
            id_ = client.submit(tokens, sampling)
            client.run()
            alone.append([comparable(client.answer(id_, choice)) for choice in range(sampling.n)])
            client.expect_all_free()
            assert client.decoder.stats().n_preemptions == 0
    with Client(n_blocks=41, max_rows=64, max_logit_rows=24, max_sequences=16, config={"policy": policy}) as client:
        ids = [client.submit(tokens, sampling, priority=i % 3) for i, (tokens, sampling) in enumerate(requests)]
        client.run()
        for (_, sampling), id_, expected in zip(requests, ids, alone, strict=True):
            assert [comparable(client.answer(id_, choice)) for choice in range(sampling.n)] == expected
        stats = client.decoder.stats()
        assert stats.n_preemptions > 0
        assert stats.n_prefix_hit_tokens > 0
        assert stats.n_recovered_tokens > 0
        assert sum(a.finish.n_cached_tokens for a in client.answers.values() if a.finish) > 0
        client.expect_all_free()


def test_the_thread_never_takes_the_gil() -> None:
    with Client(step_s=0.001, n_ctx=5000, n_blocks=1300) as client:
        client.submit(prompt(4), params(max_tokens=None))
        client.poll()
        sleep = ctypes.PyDLL(None).usleep  # PyDLL keeps the GIL during the call
        before = client.decoder.n_steps
        started = time.monotonic()
        sleep(1_000_000)
        after = client.decoder.n_steps
        assert time.monotonic() - started >= 1.0
        assert after - before >= 100


def test_idle_costs_nothing(client: Client) -> None:
    client.submit(prompt(5))
    client.run()
    steps, cpu_s = client.decoder.n_steps, time.process_time()
    time.sleep(0.3)
    assert client.decoder.n_steps == steps
    assert time.process_time() - cpu_s < 0.1


# Refusals


def test_bad_requests_are_rejected_at_submission(client: Client) -> None:
    refused: list[tuple[type[Exception], str, list[int], SamplingParams]] = [
        (RequestError, "empty prompt", [], params()),
        (RequestError, "token id 64 at position 2", [1, 2, 64], params()),
        (RequestError, "token id -1 at position 0", [-1], params()),
        (RequestError, "256 tokens.* context of 256", prompt(256), params()),
        (RequestError, "temperature", prompt(3), params(temperature=-1.0)),
        (RequestError, "stop_token_ids", prompt(3), params(stop_token_ids=[64])),
    ]
    for error, text, tokens, sampling in refused:
        with pytest.raises(error, match=text):
            client.submit(tokens, sampling)
    with pytest.raises(RequestError, match="params"):
        client.decoder.submit(Request([1]))
    with pytest.raises(RequestError, match="params"):
        client.decoder.submit(Request([1], params(), prompt_logits=True))
    assert client.decoder.stats().n_requests == 0


def test_requests_larger_than_the_pool_are_rejected_with_both_sizes() -> None:
    with Client(n_blocks=9) as client:
        with pytest.raises(CapacityError, match=r"34 tokens .* 8 blocks of 4 tokens"):
            client.submit(prompt(10), params(max_tokens=24))
        fits = client.submit(prompt(10), params(max_tokens=23))
        client.run()
        assert len(client.answer(fits).token_ids) == 23
        client.expect_all_free()


def test_limits_are_the_executors() -> None:
    for name in ("max_step_tokens", "max_running"):
        with pytest.raises(CapacityError, match=f"{name} is 17: .* at most 16"):
            Client(max_rows=16, max_sequences=16, config={name: 17})
    with pytest.raises(RequestError, match="n_ctx"):
        Client(n_ctx=1)
    with pytest.raises(ShapeError, match=r"n_vocab .*64.* 65"):
        Client(n_vocab=65)


@pytest.mark.parametrize("n_prompt", [1, 28, 30, 31])
def test_the_context_ends_exactly_at_its_limit(n_prompt: int) -> None:
    with Client(n_ctx=32) as client:
        open_end = client.submit(prompt(n_prompt), params(max_tokens=None))
        beyond = client.submit(prompt(n_prompt), params(max_tokens=100))
        client.run()
        for id_ in (open_end, beyond):
            answer = client.answer(id_)
            assert len(answer.token_ids) == 32 - n_prompt
            assert answer.finish is not None
            assert answer.finish.finish_reason == "length"
        with pytest.raises(RequestError, match=r"32 tokens.* context of 32"):
            client.submit(prompt(32))


# Ends of answers


def test_visible_tokens_show_what_the_request_says(client: Client) -> None:
    """They apply to that request alone, count for stop strings, and never show a stop token."""
    only = {"ignore_eos": False, "temperature": 1.0, "allowed_token_ids": [7], "max_tokens": 3}
    shown = {7: b"<\xc3\xa9>", EOG: b"<end>"}
    seen = client.submit(prompt(5), params(**only), visible_tokens=shown)
    plain = client.submit(prompt(5), params(**only))
    stopped = client.submit(prompt(5), params(stop=["><"], **only), visible_tokens=shown)
    ended = client.submit(prompt(5), params(**{**only, "allowed_token_ids": [EOG]}), visible_tokens=shown)
    client.run()
    texts = [client.answer(id_).text for id_ in (seen, plain, stopped, ended)]
    assert texts == ["<é>" * 3, "hhh", "<é", ""]
    with pytest.raises(RequestError, match=f"visible_tokens .*{N_VOCAB}"):
        client.submit(prompt(5), params(**only), visible_tokens={N_VOCAB: b"x"})


def test_end_of_generation_and_stop_tokens(client: Client) -> None:
    only = {"ignore_eos": False, "temperature": 1.0}
    eog = client.submit(prompt(5), params(allowed_token_ids=[EOG], **only))
    stop = client.submit(prompt(5), params(allowed_token_ids=[7], stop_token_ids=[7], **only))
    shown = client.submit(
        prompt(5), params(allowed_token_ids=[7], stop_token_ids=[7], include_stop_str_in_output=True, **only)
    )
    late = client.submit(prompt(5), params(allowed_token_ids=[7, EOG], logit_bias=[(EOG, 50.0)], min_tokens=3, **only))
    client.run()
    results = []
    for id_ in (eog, stop, shown, late):
        answer = client.answer(id_)
        assert answer.finish is not None
        results.append((answer.token_ids, answer.text, answer.finish.finish_reason, answer.finish.stop_reason))
    assert results == [
        ([EOG], "", "stop", EOG),
        ([7], "", "stop", 7),
        ([7], "h", "stop", 7),
        ([7, 7, 7, EOG], "hhh", "stop", EOG),
    ]


def test_stop_strings_are_never_shown_in_part(client: Client) -> None:
    expected = text_of(greedy_without_eog(prompt(6), 8))
    stop = expected[3:6]
    id_ = client.submit(prompt(6), params(stop=["never", stop]))
    client.run()
    answer = client.answer(id_)
    assert answer.text == expected[: expected.index(stop)]
    assert answer.token_ids == greedy_without_eog(prompt(6), 8)[: expected.index(stop) + 3]
    assert answer.finish is not None
    assert (answer.finish.finish_reason, answer.finish.stop_reason) == ("stop", stop)


def test_text_held_back_for_a_stop_string_comes_with_the_end(client: Client) -> None:
    tokens = greedy_without_eog(prompt(6), 4)
    id_ = client.submit(prompt(6), params(max_tokens=4, stop=[text_of(tokens[2:]) + "!"]))
    client.run()
    assert client.answer(id_).text == text_of(tokens)
    texts = [event.text for event in client.events if event.kind == "delta"]
    assert texts == [text_of(tokens[:1]), text_of(tokens[1:2]), "", text_of(tokens[2:])]


def test_characters_are_never_split(client: Client) -> None:
    bias = params(max_tokens=3, logit_bias=[(ACCENT[0], 100.0)])
    id_ = client.submit(prompt(3), bias)
    whole = client.submit(prompt(3), params(max_tokens=6, allowed_token_ids=list(ACCENT), temperature=1.0, seed=5))
    client.run()
    assert client.answer(id_).text == "\ufffd" * 3
    answer = client.answer(whole)
    assert answer.text == text_of(answer.token_ids)
    assert "é" in answer.text


# Log-probabilities and logits


def test_logprobs_are_the_log_softmax(client: Client) -> None:
    id_ = client.submit(prompt(6), params(logprobs=3))
    none = client.submit(prompt(6))
    client.run()
    tokens = prompt(6)
    for sampled in client.answer(id_).logprobs:
        expected = log_softmax(logits_after(tokens))
        best = np.argsort(-expected, kind="stable")[:3]
        assert sampled.logprob == pytest.approx(expected[sampled.id], abs=1e-5)
        assert [id_ for id_, _ in sampled.top] == best.tolist()
        assert [value for _, value in sampled.top] == pytest.approx(expected[best].tolist(), abs=1e-5)
        tokens.append(sampled.id)
    assert tokens[6:] == client.answer(id_).token_ids
    assert client.answer(none).logprobs == []


@pytest.mark.parametrize("max_logit_rows", [2, 7, 64])
def test_prompt_logprobs_in_chunks(max_logit_rows: int) -> None:
    tokens = prompt(30)
    with Client(max_logit_rows=max_logit_rows) as client:
        client.submit(tokens)
        client.run()  # fill the cache with the prompt
        id_ = client.submit(tokens, params(prompt_logprobs=1, max_tokens=2, n=2))
        client.run()
        rows = client.answer(id_).prompt_logprobs
        assert [row.id for row in rows] == tokens[1:]
        for i, row in enumerate(rows):
            expected = log_softmax(logits_after(tokens[: i + 1]))
            assert row.logprob == pytest.approx(expected[tokens[i + 1]], abs=1e-5)
            assert row.top[0][0] == int(np.argmax(expected))
        assert client.answer(id_, 1).prompt_logprobs == []
        assert client.answer(id_).token_ids == greedy_without_eog(tokens, 2)
        client.expect_all_free()


def test_every_row_of_a_prompts_logits() -> None:
    tokens = prompt(32)
    with Client(n_ctx=32, max_rows=10, max_logit_rows=7, max_sequences=4) as client:
        id_ = client.decoder.submit(Request(tokens, prompt_logits=True))
        rows: dict[int, np.ndarray] = {}
        finish = None
        while finish is None:
            for event in client.decoder.wait(10.0):
                assert event.request_id == id_
                if event.kind == "prompt_logits":
                    assert event.logits is not None
                    rows |= {event.first_position + i: row for i, row in enumerate(event.logits)}
                else:
                    finish = event
        assert finish.finish_reason == "length"
        assert finish.n_generated_tokens == 0
        assert sorted(rows) == list(range(32))
        for position, row in rows.items():
            np.testing.assert_array_equal(row, logits_after(tokens[: position + 1]))
        client.expect_all_free()


def test_logits_may_be_processed_outside_while_others_go_on(client: Client) -> None:
    slow = client.submit(prompt(6), params(max_tokens=3, n=2), external_logits=True)
    other = client.submit(prompt(9), params(max_tokens=20))
    rows: list[Event] = []
    while client.answer(other).finish is None:
        rows += [event for event in client.poll() if event.kind == "logits"]
    assert [(event.request_id, event.choice) for event in rows] == [(slow, 0), (slow, 1)]
    wanted = {0: [5, 9, 11], 1: [2, 2, 3]}
    for i in range(3):
        for event in rows:
            assert event.logits is not None
            np.testing.assert_array_equal(event.logits, logits_after(prompt(6) + wanted[event.choice][:i]))
            assert event.first_position == 5 + i
            changed = np.array(event.logits)
            changed[wanted[event.choice][i]] = 100.0
            client.decoder.provide_logits(slow, event.choice, changed)
        rows = []
        while len(rows) < 2 and any(client.open.values()):
            rows += [event for event in client.poll() if event.kind == "logits"]
    assert [client.answer(slow, choice).token_ids for choice in (0, 1)] == [wanted[0], wanted[1]]
    with pytest.raises(ShapeError, match=r"\b3 .* 64\b"):
        client.decoder.provide_logits(slow, 0, np.zeros(3, np.float32))
    client.decoder.provide_logits(slow, 0, np.zeros(N_VOCAB, np.float32))  # no-op: the request has ended


def test_logits_that_nobody_waits_for_are_an_error_of_their_request() -> None:
    with Client(step_s=0.002) as client:
        id_ = client.submit(prompt(6), params(max_tokens=200))
        other = client.submit(prompt(5), params(max_tokens=20))
        client.poll()
        client.decoder.provide_logits(id_, 0, np.zeros(N_VOCAB, np.float32))
        client.run()
        error = client.answer(id_).error
        assert error is not None
        assert (error.error_kind, "does not wait for logits" in error.error) == ("RequestError", True)
        assert client.answer(other).token_ids == greedy_without_eog(prompt(5), 20)


# Choices, seeds, salts


def test_choices_are_distinct_and_repeatable(client: Client) -> None:
    sampling = params(n=4, temperature=1.0, seed=11, max_tokens=10)
    first = client.submit(prompt(10), sampling)
    client.run()
    again = client.submit(prompt(10), sampling)
    client.submit(prompt(11), params(n=3, temperature=1.0))
    client.run()
    answers = [[client.answer(id_, choice).token_ids for choice in range(4)] for id_ in (first, again)]
    assert answers[0] == answers[1]
    assert len({tuple(tokens) for tokens in answers[0]}) == 4


def test_without_a_seed_requests_differ(client: Client) -> None:
    ids = [client.submit(prompt(10), params(temperature=1.0, max_tokens=16)) for _ in range(2)]
    client.run()
    assert client.answer(ids[0]).token_ids != client.answer(ids[1]).token_ids


def test_salts_keep_tenants_apart(client: Client) -> None:
    cached = []
    for salt in (b"a", b"a", b"b", b""):
        id_ = client.submit(prompt(20), salt=salt)
        client.run()
        finish = client.answer(id_).finish
        assert finish is not None
        cached.append(finish.n_cached_tokens)
    assert cached == [0, 16, 0, 0]


# Cancellation and errors


def wait_until(condition: object, client: Client) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        client.poll(0.01)


def test_cancellation_in_every_phase() -> None:
    with Client(step_s=0.005, max_rows=8, max_sequences=2, n_ctx=512) as client:
        decoding = client.submit(prompt(4), params(max_tokens=None))
        wait_until(lambda: client.answer(decoding).token_ids, client)
        prefilling = client.submit(prompt(400, seed=1), params(n=3))
        queued = client.submit(prompt(6, seed=2))
        survivor = client.submit(prompt(7, seed=3))
        wait_until(lambda: client.decoder.stats().n_following == 2, client)
        for id_ in (queued, prefilling, decoding, 12345, decoding):
            client.decoder.cancel(id_)
        client.run()
        for id_, n_choices in ((decoding, 1), (prefilling, 3), (queued, 1)):
            for choice in range(n_choices):
                finish = client.answer(id_, choice).finish
                assert finish is not None
                assert finish.finish_reason == "cancelled"
        assert client.answer(prefilling).token_ids == client.answer(queued).token_ids == []
        n_decoded = len(client.answer(decoding).token_ids)
        assert client.answer(decoding).token_ids == greedy_without_eog(prompt(4), n_decoded)
        assert client.answer(survivor).token_ids == greedy_without_eog(prompt(7, seed=3), 8)
        client.expect_all_free()


def test_cancellation_while_logits_are_outside(client: Client) -> None:
    id_ = client.submit(prompt(6), external_logits=True)
    assert [event.kind for event in client.poll()] == ["logits"]
    client.decoder.cancel(id_)
    client.run()
    finish = client.answer(id_).finish
    assert finish is not None
    assert finish.finish_reason == "cancelled"


def test_a_cancelled_request_is_freed_at_once() -> None:
    with Client(step_s=0.01, n_ctx=500) as client:  # its answer takes 5 s
        id_ = client.submit(prompt(4), params(max_tokens=None))
        wait_until(lambda: client.answer(id_).token_ids, client)
        started = time.monotonic()
        client.decoder.cancel(id_)
        client.run()
        assert time.monotonic() - started < 2.5
        client.expect_all_free()


def test_one_bad_request_harms_no_other() -> None:
    with Client(nan_after=62) as client:
        seeds = [seed for seed in range(20) if 62 not in greedy_without_eog(prompt(8, seed=seed), 20)]
        good = [client.submit(prompt(8, seed=seed), params(max_tokens=20)) for seed in seeds]
        bad = client.submit([*prompt(5), 62, 1], params(n=2))
        client.run()
        error = client.answer(bad).error
        assert error is not None
        assert error.error_kind == "RequestError"
        assert "nan" in error.error
        assert [event.request_id for event in client.events if event.kind == "error"] == [bad]
        assert len(seeds) > 5
        for seed, id_ in zip(seeds, good, strict=True):
            assert client.answer(id_).token_ids == greedy_without_eog(prompt(8, seed=seed), 20)
        client.expect_all_free()


def test_a_step_that_throws_fails_its_own_requests_alone() -> None:
    with Client(fail_on=62, max_sequences=2, max_rows=16) as client:
        ids = [client.submit([*prompt(6), 62] if i == 1 else prompt(6, seed=i)) for i in range(6)]
        client.run()
        errors = [id_ for id_ in ids if client.answer(id_).error]
        assert ids[1] in errors
        assert len(errors) <= 2  # those in the same step
        error = client.answer(ids[1]).error
        assert error is not None
        assert (error.error_kind, error.error) == (
            "CapacityError",
            "[fake_executor] a step with token 62 fails, as configured",
        )
        for i, id_ in enumerate(ids):
            if id_ not in errors:
                assert client.answer(id_).token_ids == greedy_without_eog(prompt(6, seed=i), 8)
        assert client.decoder.stats().n_failed_steps == 1
        client.expect_all_free()


# Delivery of events


def readable(fd: int, timeout_s: float) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


def test_the_file_descriptor_is_readable_while_events_wait(client: Client) -> None:
    fd = client.decoder.event_fd
    assert not readable(fd, 0)
    client.submit(prompt(5))
    while any(client.open.values()):
        assert readable(fd, 10)
        assert client.poll(0)
    assert not readable(fd, 0.05)
    assert client.decoder.wait(0.0) == []


def test_asyncio_wakes_up_by_the_file_descriptor(client: Client) -> None:
    async def collect() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def on_events() -> None:
            client.poll(0)
            if not any(client.open.values()):
                done.set()

        loop.add_reader(client.decoder.event_fd, on_events)
        client.submit(prompt(5))
        await asyncio.wait_for(done.wait(), 10)
        loop.remove_reader(client.decoder.event_fd)

    asyncio.run(collect())
    assert [event.kind for event in client.events] == ["delta"] * 8 + ["finish"]


def test_deltas_gather_but_the_end_comes_at_once() -> None:
    with Client(step_s=0.002) as client:
        assert client.decoder.wait(0.0) == []  # deltas gather from the last batch on
        before = time.monotonic()
        client.submit(prompt(5), params(max_tokens=30))
        batch = client.decoder.wait(60.0, gather_s=60.0)
        assert time.monotonic() - before < 30  # less than gather_s
        assert [event.kind for event in batch] == ["delta"] * 30 + ["finish"]
        assert client.decoder.wait(0.0, gather_s=60.0) == []


def test_requests_from_many_threads() -> None:
    with Client(n_blocks=65) as client:
        ids: dict[int, tuple[int, int]] = {}
        lock = threading.Lock()

        def work(thread: int) -> None:
            for i in range(8):
                id_ = client.submit(prompt(5 + i, seed=thread), params(max_tokens=6))
                with lock:
                    ids[id_] = (thread, i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.run()
        assert len(ids) == 48
        for id_, (thread, i) in ids.items():
            assert client.answer(id_).token_ids == greedy_without_eog(prompt(5 + i, seed=thread), 6)
        client.expect_all_free()


def test_close_cancels_gives_back_and_refuses() -> None:
    client = Client(step_s=0.005)
    ids = [client.submit(prompt(5, seed=i), params(max_tokens=None)) for i in range(3)]
    client.poll()
    client.decoder.close()
    client.decoder.close()
    assert client.decoder.closed
    while client.poll(10.0):
        pass
    for id_ in ids:
        finish = client.answer(id_).finish
        assert finish is not None
        assert finish.finish_reason == "cancelled"
    client.expect_all_free()
    with pytest.raises(RequestError, match="closed"):
        client.submit(prompt(5))
    client.decoder.cancel(ids[0])
    started = time.monotonic()
    assert client.decoder.wait(10.0) == []
    assert time.monotonic() - started < 1


def test_a_decoder_that_is_dropped_ends_its_thread() -> None:
    client = Client(step_s=0.002)
    client.submit(prompt(5), params(max_tokens=None))
    n_threads = len(list_threads())
    del client
    assert len(list_threads()) == n_threads - 1


def list_threads() -> list[str]:
    try:
        from os import listdir

        return listdir("/proc/self/task")
    except FileNotFoundError:
        pytest.skip("/proc is absent")


def test_a_paused_request_gives_its_place_to_the_next() -> None:
    with Client(step_s=0.002, max_sequences=1, n_ctx=512) as client:
        unread = client.submit(prompt(6), params(max_tokens=40))
        wait_until(lambda: client.answer(unread).token_ids, client)
        client.decoder.pause(unread)
        client.decoder.pause(12345)
        next_one = client.submit(prompt(7, seed=1))
        wait_until(lambda: client.open[next_one] == 0, client)
        n_written = len(client.answer(unread).token_ids)
        assert 0 < n_written < 40
        assert client.poll(0.1) == []
        assert client.decoder.stats().n_paused == 1
        client.decoder.resume(unread)
        client.run()
        assert client.answer(unread).token_ids == greedy_without_eog(prompt(6), 40)
        assert client.answer(next_one).token_ids == greedy_without_eog(prompt(7, seed=1), 8)
        client.expect_all_free()


def test_preemption_by_another_key_changes_no_answer() -> None:
    with Client(step_s=0.002, max_sequences=1, n_ctx=512, config={"policy": "dynamic"}) as client:
        long = client.submit(prompt(30), params(max_tokens=300), key="a", priority=100)
        other = client.submit(prompt(7, seed=1), key="b")
        client.run()
        ends = [event.request_id for event in client.events if event.kind == "finish"]
        assert ends == [other, long]
        assert client.answer(long).token_ids == greedy_without_eog(prompt(30), 300)
        assert client.answer(other).token_ids == greedy_without_eog(prompt(7, seed=1), 8)
        assert client.decoder.stats().n_yields == 1
        client.expect_all_free()
