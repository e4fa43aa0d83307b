"""The engine between decoder and callers: every request ends exactly once, whatever goes wrong beside it.

Oracle: the made-up model's answer to a prompt when nothing else runs.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator, Sequence

import pytest
from quire._native.engine import Decoder, DecoderConfig, Event, VocabInfo
from quire._native.testing import FakeExecutor
from quire.engine.engine import Engine, EngineRequest, Failure, native_params
from quire.errors import InternalError, QuireError, RequestError
from quire.params.sampling import PARAMETERS, SamplingParams

pytestmark = pytest.mark.pythons

N_VOCAB = 64
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def make_engine(**options: object) -> Engine:
    executor = FakeExecutor(n_vocab=N_VOCAB, **options)
    vocab = VocabInfo(N_VOCAB, [], [b"%d " % i for i in range(N_VOCAB)])
    return Engine(Decoder(executor, vocab, DecoderConfig(n_ctx=256)), N_VOCAB)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = make_engine()
    yield made
    made.close()


def answer(engine: Engine, request: EngineRequest) -> list[int]:
    """Return the token ids of the first choice; raises the request's error."""
    inbox: queue.SimpleQueue[Sequence[Event | Failure]] = queue.SimpleQueue()
    engine.submit(request, inbox.put)
    tokens: list[int] = []
    n_unfinished = request.n
    while n_unfinished:
        for item in inbox.get(timeout=20):
            if isinstance(item, Failure):
                raise item.error
            tokens += item.token_ids if item.choice == 0 else []
            n_unfinished -= item.kind == "finish"
    assert inbox.empty()
    return tokens


def test_native_parameters_are_the_public_ones():
    params = SamplingParams(top_k=7, logit_bias={3: 1.5, 1: -2.0}, stop=["a", "b"], seed=2**64 - 1, samplers=["top_k"])
    native = native_params(params)
    assert (native.top_k, native.seed, native.samplers, native.stop) == (7, 2**64 - 1, ["top_k"], ["a", "b"])
    assert native.logit_bias == [(3, 1.5), (1, -2.0)]
    assert native.max_tokens is None
    for name, parameter in PARAMETERS.items():
        assert hasattr(native, name) == parameter.native


def test_a_failing_step_fails_its_request_with_the_right_class():
    engine = make_engine(fail_on=13)
    try:
        expected = answer(engine, EngineRequest([1, 2, 3], GREEDY))
        if 13 in expected:
            pytest.fail("the made-up model gives the token that fails")
        with pytest.raises(QuireError):
            answer(engine, EngineRequest([1, 13, 3], GREEDY))
        assert answer(engine, EngineRequest([1, 2, 3], GREEDY)) == expected
    finally:
        engine.close()


def test_many_threads_many_cancellations(engine):
    """Eight threads send requests and cancel every third at a random moment: the others answer as if alone."""
    requests = [
        EngineRequest([i % N_VOCAB, i % 7, 3], SamplingParams(max_tokens=20, temperature=0.0)) for i in range(40)
    ]
    expected = [answer(engine, request) for request in requests]
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for i, request in enumerate(requests):
            if rng.random() < 1 / 3:
                inbox: queue.SimpleQueue[Sequence[Event | Failure]] = queue.SimpleQueue()
                request_id = engine.submit(request, inbox.put)
                if rng.random() < 0.5:
                    inbox.get(timeout=20)
                engine.cancel(request_id)
            elif answer(engine, request) != expected[i]:
                wrong.append(f"thread {seed}, request {i}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert answer(engine, requests[0]) == expected[0]
    stats = engine.stats()
    assert (stats.n_requests, stats.n_free_blocks) == (0, stats.n_usable_blocks)


def test_requests_whose_receiver_is_gone_are_cancelled():
    engine = make_engine(step_s=0.01)
    reached = threading.Event()

    def gone(items: Sequence[Event | Failure]) -> None:
        reached.set()
        raise RuntimeError("the event loop is closed")

    engine.submit(EngineRequest([1], SamplingParams(max_tokens=240, temperature=0.0)), gone)
    assert reached.wait(20)
    assert len(answer(engine, EngineRequest([2], GREEDY))) == 8
    for _ in range(10_000):
        if engine.stats().n_requests == 0:
            break
        threading.Event().wait(0.002)
    stats = engine.stats()
    assert stats.n_requests == 0
    assert stats.n_generated_tokens < 240  # cancelled, not finished
    engine.close()


class BrokenDecoder:
    """A decoder whose thread has died."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def submit(self, request: object) -> int:
        self.begun.set()
        return 1

    def wait(self, timeout_s: float, gather_s: float = 0.0) -> list[Event]:
        self.begun.wait(20)
        raise InternalError("[decoder] broke")

    def close(self) -> None: ...


def test_a_broken_decoder_fails_every_request():
    engine = Engine(BrokenDecoder(), N_VOCAB)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="broke"):
        answer(engine, EngineRequest([1], GREEDY))
    engine.close()


def test_closing_ends_requests_in_flight():
    engine = make_engine(step_s=0.01)
    inbox: queue.SimpleQueue[Sequence[Event | Failure]] = queue.SimpleQueue()
    engine.submit(EngineRequest([1], SamplingParams(max_tokens=200, temperature=0.0)), inbox.put)
    inbox.get(timeout=20)
    engine.close()
    items = [item for items in iter(lambda: inbox.get(timeout=20) if not inbox.empty() else (), ()) for item in items]
    assert [item.finish_reason for item in items if isinstance(item, Failure) or item.kind == "finish"] == ["cancelled"]
    assert engine.closed
    engine.close()
    with pytest.raises(RequestError, match="closed"):
        engine.submit(EngineRequest([1], GREEDY), inbox.put)
    engine.cancel(1)


def test_processors_of_several_choices_see_their_own_tokens(engine):
    seen: list[tuple[int, ...]] = []

    def spy(token_ids, logits):
        seen.append(token_ids)
        return logits

    params = SamplingParams(max_tokens=5, n=3, seed=4, logits_processors=[spy])
    plain = SamplingParams(max_tokens=5, n=3, seed=4)
    tokens = answer(engine, EngineRequest([7, 8], params))
    assert tokens == answer(engine, EngineRequest([7, 8], plain))
    assert len(seen) == 15
    assert [rows for rows in seen if rows == (7, 8)] == [(7, 8)] * 3
    assert {(7, 8, *tokens[:i]) for i in range(5)} <= set(seen)
