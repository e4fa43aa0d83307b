"""Grammars that take long to compile delay only their own caller: turns, budgets, remembered refusals."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from grammar_texts import N_VOCAB, bits, byte_vocabulary
from quire.errors import BusyError, RequestError, UnsupportedError
from quire.grammar import Budget, Compiler, CompilerLimits, Grammar, GrammarSource, grammar_source
from quire.grammar.deep_thread import PATIENT
from quire.grammar.refusals import Refusals
from quire.grammar.trial import Trial
from quire.grammar.turns import Turns
from quire.params.structured import StructuredOutputsParams
from quire.server.failures import of_quire
from quire.server.fair_pool import FairPool
from quire.server.worker import protocol as wire
from quire.server.worker.model_worker import ModelWorker

BUDGET = Budget(key_s=4.0, key_share=0.25, total_s=6.0, total_share=0.5, key_waiting=3)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns[str]:
    return Turns(BUDGET, wait_s=10.0, clock=clock)


def drained(turns: Turns[str]) -> list[str]:
    return [item for item in iter(turns.next, None) if item is not None]


def test_callers_take_turns_and_the_smallest_comes_first(turns: Turns[str]) -> None:
    for item, key, size in (("a3", "a", 3), ("a1", "a", 1), ("a2", "a", 2), ("b1", "b", 9)):
        turns.add(item, key, size)
    turns.add("n", None, 50)
    assert drained(turns) == ["a1", "b1", "n", "a2", "a3"]
    assert len(turns) == 0


def test_a_caller_that_has_used_its_share_waits(turns: Turns[str], clock: Clock) -> None:
    turns.add("waits", "a", 1)
    turns.charge("a", 5.0)  # a second more than it had, which takes four seconds to come back
    with pytest.raises(BusyError, match="share") as refused:
        turns.add("x", "a", 1)
    assert refused.value.retry_after_s == 5
    assert [(item, error.retry_after_s) for item, error in turns.given_up()] == [("waits", 5)]
    turns.add("tame", "a", 1, is_free=True)
    turns.add("other", "b", 1)
    turns.add("unlimited", None, 1)
    assert sorted(drained(turns)) == ["other", "tame", "unlimited"]
    clock.now_s += 4.1
    turns.add("x", "a", 1)
    assert turns.next() == "x"


def test_all_callers_together_have_a_share(turns: Turns[str], clock: Clock) -> None:
    for key in ("a", "b"):
        turns.charge(key, 3.5)  # each within its own share
    turns.add("c", "c", 1)
    assert turns.next() is None
    assert turns.pause_s == pytest.approx(2.01)
    turns.add("free", "c", 1, is_free=True)
    assert turns.next() == "free"
    clock.now_s += 2.1
    assert turns.next() == "c"


def test_waiting_is_limited_in_time_and_number(turns: Turns[str], clock: Clock) -> None:
    for i in range(3):
        turns.add(f"a{i}", "a", i)
    with pytest.raises(BusyError, match="more than 3"):
        turns.add("a3", "a", 1)
    clock.now_s += 9.0
    turns.add("b", "b", 1)
    clock.now_s += 2.0
    assert sorted(item for item, _ in turns.given_up()) == ["a0", "a1", "a2"]
    assert drained(turns) == ["b"]


def test_idle_callers_are_forgotten(turns: Turns[str], clock: Clock) -> None:
    for i in range(100):
        turns.add("x", f"key-{i}", 1)
        turns.charge(f"key-{i}", 0.01)
        drained(turns)
        clock.now_s += 1.0
    assert len(turns._accounts) <= 2


def test_refusals_are_bounded_and_expire(clock: Clock) -> None:
    refusals = Refusals(most=2, keep_s=60.0, clock=clock)
    for name in (b"a", b"b", b"c"):
        refusals.add(name, RequestError(f"[grammar] {name!r}"))
    assert len(refusals) == 2
    assert refusals.of(b"a") is None
    first, again = refusals.of(b"c"), refusals.of(b"c")
    assert isinstance(first, RequestError)
    assert str(first) == str(again) == "[grammar] b'c'"
    assert first is not again  # each has its own traceback
    clock.now_s += 61.0
    assert refusals.of(b"c") is None


# The compiler


def properties(n: int, name: str = "p", **more: Any) -> GrammarSource:
    schema = {"type": "object", "properties": {f"{name}{i}": {"type": "integer"} for i in range(n)}, **more}
    return grammar_source(StructuredOutputsParams(json=schema))


SLOW = StructuredOutputsParams(
    grammar="start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(40)) + 'T40: "a"'
)


@pytest.mark.parametrize(
    "more", [{}, {"additionalProperties": False}, {"required": [f"p{i}" for i in range(0, 1000, 2)]}]
)
def test_a_thousand_plain_properties_are_compiled_and_followed(more: dict[str, Any]) -> None:
    """The whole object, key after key: every row of the parser has all keys that may still come."""
    matcher = Compiler(byte_vocabulary).compile(properties(1000, **more)).matcher()
    mask = np.zeros((N_VOCAB + 31) // 32, np.uint32)
    for token in b'{"p0":1,"p2":22' if "required" in more else b'{"p7":1,"p999":22}':
        matcher.fill(mask)
        assert bits(mask)[token], chr(token)
        matcher.advance(token)
    matcher.fill(mask)
    assert matcher.is_complete == ("required" not in more)


def test_a_refused_grammar_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    usual = Trial.run

    def run(self: Trial, grammar: str, deadline_s: float) -> Any:
        tried.append(grammar)
        return usual(self, grammar, deadline_s)

    monkeypatch.setattr(Trial, "run", run)
    compiler = Compiler(byte_vocabulary)
    messages = set()
    for _ in range(3):
        with pytest.raises(RequestError) as refused:
            compiler.compile(grammar_source(SLOW))
        messages.add(str(refused.value))
    with pytest.raises(UnsupportedError):
        compiler.compile(grammar_source(StructuredOutputsParams(regex="(?=a)b")))
    with pytest.raises(UnsupportedError):
        compiler.compile(grammar_source(StructuredOutputsParams(regex="(?=a)b")))
    assert len(messages) == 1
    assert len(tried) == 2


def test_busy_errors_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [(0.1, BusyError("[grammar] busy", 1)), (0.1, None)]
    monkeypatch.setattr(Trial, "run", lambda *_: outcomes.pop(0))
    compiler = Compiler(byte_vocabulary)
    source = grammar_source(StructuredOutputsParams(regex="ab"))
    with pytest.raises(BusyError):
        compiler.compile(source)
    assert compiler.compile(source)


def test_the_trial_process_survives_a_killed_grammar() -> None:
    compiler = Compiler(byte_vocabulary)
    compiler.compile(grammar_source(StructuredOutputsParams(regex="a")))
    assert compiler._trial is not None
    process = compiler._trial._process
    assert process is not None
    with pytest.raises(RequestError):
        compiler.compile(grammar_source(SLOW))
    assert compiler.compile(grammar_source(StructuredOutputsParams(regex="b")))
    assert compiler._trial._process is process
    if sys.platform == "linux":
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(own + PATIENT, 19)


def test_callers_have_separate_budgets() -> None:
    compiler = Compiler(byte_vocabulary, CompilerLimits(budget=Budget(key_s=0.05, key_share=0.001)))
    with pytest.raises(RequestError, match=r"s to compile|too complex|too big"):
        compiler.begin(grammar_source(SLOW), "a").result()
    with pytest.raises(BusyError) as refused:
        compiler.begin(properties(300), "a").result()
    failure = of_quire(refused.value)
    assert (failure.status, failure.code) == (429, "grammar_busy")
    assert (b"retry-after", str(refused.value.retry_after_s).encode()) in failure.headers()
    assert refused.value.retry_after_s > 60
    assert compiler.begin(properties(300), "b").result()
    assert compiler.begin(properties(300), "a").result()  # cached, so it costs nothing
    assert compiler.begin(properties(3), "a").result()  # a tame one costs nothing either
    assert compiler.compile(properties(301))


def test_equal_grammars_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(byte_vocabulary)
    n_compiled = 0
    usual = compiler._vocabulary.compile

    def compile(source: GrammarSource) -> Grammar:
        nonlocal n_compiled
        n_compiled += 1
        return usual(source)

    monkeypatch.setattr(compiler._vocabulary, "compile", compile)
    futures = [compiler.begin(properties(400), key) for key in ("a", "b", "a", None, "b")]
    assert len({id(future.result()) for future in futures}) == 1
    assert n_compiled == 1
    assert not compiler._jobs


def test_abandoned_grammars_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(byte_vocabulary)
    begun, go = threading.Event(), threading.Event()
    compiled = []

    def compile(source: GrammarSource) -> Any:
        begun.set()
        go.wait(20)
        compiled.append(source)
        return object()

    monkeypatch.setattr(compiler._vocabulary, "compile", compile)
    first, left = compiler.begin(properties(2), "a"), compiler.begin(properties(3), "a")
    begun.wait(20)
    assert left.cancel()
    go.set()
    first.result()
    compiler.begin(properties(4), "a").result()
    assert compiled == [properties(2), properties(4)]


# In the server


def test_callers_take_turns_in_a_pool() -> None:
    pool = FairPool(1, "test")
    done: list[str] = []
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    pool.submit("a", 0, lambda: (begun.set(), go.wait(20))[0])
    begun.wait(20)
    for name in ("a1", "a2", "a3", "b1", "c1"):
        pool.submit(name[0], 0, lambda name=name: done.append(name))  # type: ignore[misc]
    pool.submit("c", 0, ended.set)
    go.set()
    assert ended.wait(20)
    pool.submit("d", 0, lambda: done.append("d"))
    pool.close()
    pool.submit("d", 0, lambda: done.append("late"))
    assert done[:3] == ["a1", "b1", "c1"]
    assert "late" not in done


@pytest.fixture
def worker() -> Iterator[tuple[ModelWorker, queue.SimpleQueue[Any]]]:
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = ModelWorker(
        wire.Open(None, {"threads": 1, "n_ctx": 128}), lambda messages: [said.put(one) for one in messages]
    )
    yield made, said
    made.close()


def heard(said: queue.SimpleQueue[Any], id_: int) -> Any:
    """Return the last message of a request."""
    while True:
        message = said.get(timeout=30)
        if (
            not isinstance(message, wire.Beat)
            and message.id == id_
            and isinstance(message, wire.Finished | wire.Failed)
        ):
            return message


def test_other_requests_do_not_wait_for_grammars(
    worker: tuple[ModelWorker, queue.SimpleQueue[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = worker
    futures: list[Future[Grammar]] = []

    def begin(form: GrammarSource, key: str) -> Future[Grammar]:
        futures.append(Future())
        return futures[-1]

    usual = made._prompts.begin_grammar
    monkeypatch.setattr(made._prompts, "begin_grammar", begin)
    form = {"structured_outputs": {"regex": "[a-z]{3}"}, "max_tokens": 8}
    for id_ in range(1, 9):  # more than the pool has threads
        made.handle(wire.Generate(id_, "x", form))
    made.handle(wire.Generate(20, "Once", {"max_tokens": 3, "ignore_eos": True}))
    assert heard(said, 20).n_generated_tokens == 3
    while len(futures) < 8:
        made.handle(wire.Generate(21, "Once", {"max_tokens": 1}))
        heard(said, 21)
    made.handle(wire.Cancel(1))
    assert futures[0].cancelled()
    futures[1].set_exception(BusyError("[grammar] busy", 7))
    failed = heard(said, 2)
    assert (failed.kind, failed.retry_after_s) == ("BusyError", 7)
    futures[2].set_result(usual(grammar_source(StructuredOutputsParams(regex="[a-z]{3}")), "").result())
    assert heard(said, 3).reason == "stop"
