"""Hostile grammars: each is accepted or refused with a typed error, at no cost to other requests."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout

import numpy as np
import pytest
from grammar_texts import N_VOCAB, bits, byte_vocabulary
from quire.engine import LLM
from quire.errors import BusyError, QuireError, RequestError, UnsupportedError
from quire.grammar import Compiler, CompilerLimits, grammar_source
from quire.grammar.compiler import _Compilation
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredOutputsParams
from structured_bombs import BOMBS

# Forms over the size limits, and forms that would run for minutes or end the process: the trial refuses these.
TOO_LARGE = ["deep items", "a mebibyte", "wide regex"]
ENDLESS = ["5000 free keys", "many rules", "terminals in each other"]
# An endless form is refused for its time on a slow machine, and for its size if the compiler gets that far.
ENDLESS_ERRORS = re.compile(r"more than 0\.\d s to compile|too complex|too big|must have at most|of more than")


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(byte_vocabulary)


@pytest.mark.parametrize("name", [name for name in BOMBS if name not in TOO_LARGE])
def test_hostile_forms_are_accepted_or_refused(compiler, name):
    """An accepted form can be followed: no mask is empty, and none takes endless work."""
    refusal = followed(compiler, StructuredOutputsParams(**BOMBS[name]))
    assert refusal is None or len(refusal) < 500
    if name in ENDLESS:
        assert refusal is not None
        assert ENDLESS_ERRORS.search(refusal)


def followed(compiler: Compiler, form: StructuredOutputsParams) -> str | None:
    """Follow forty tokens of an answer; return the error, if any."""
    mask = np.zeros((N_VOCAB + 31) // 32, np.uint32)
    try:
        matcher = compiler.compile(grammar_source(form)).matcher()
        for step in range(40):
            matcher.fill(mask)
            allowed = np.flatnonzero(bits(mask))
            token = int(allowed[step % len(allowed)])
            if token == 256:
                break
            matcher.advance(token)
    except (RequestError, UnsupportedError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", TOO_LARGE)
def test_forms_over_the_size_limit_are_refused(name):
    with pytest.raises(RequestError, match=r"\d+ bytes"):
        StructuredOutputsParams(**BOMBS[name])


def test_a_grammar_that_would_end_the_process(compiler, monkeypatch):
    """llguidance follows chains of rules by recursion.  A stack overflow ends only the trial's process."""
    monkeypatch.setattr("quire.grammar.trial.STACK_BYTES", 1 << 20)
    chain = "start: r0\n" + "".join(f'r{i}: r{i + 1} "x" | "y"\n' for i in range(9000)) + 'r9000: "a"'
    with pytest.raises(RequestError, match="too complex"):
        Compiler(byte_vocabulary, CompilerLimits(trial_s=20.0)).compile(
            grammar_source(StructuredOutputsParams(grammar=chain))
        )
    assert compiler.compile(grammar_source(StructuredOutputsParams(regex="ab+")))


def test_a_trial_that_is_busy_has_a_queue(compiler):
    busy = Compiler(byte_vocabulary, CompilerLimits(trial_s=2.0, queue_s=0.05))
    busy.compile(grammar_source(StructuredOutputsParams(regex="a")))
    errors: list[Exception] = []

    def bomb(name: str) -> None:
        try:
            busy.compile(grammar_source(StructuredOutputsParams(**BOMBS[name])))
        except QuireError as error:
            errors.append(error)

    threads = [threading.Thread(target=bomb, args=(name,)) for name in ("terminals in each other", "many rules")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(error) for error in errors} == {RequestError, BusyError}


def test_time_without_the_processor_does_not_count(compiler):
    """A trial that waits for the processor longer than its limit continues when it gets it."""
    compiler.compile(grammar_source(StructuredOutputsParams(regex="a")))
    process = compiler._trial._process
    made: list[object] = []
    other = grammar_source(StructuredOutputsParams(regex="a busy machine"))
    thread = threading.Thread(target=lambda: made.append(compiler.compile(other)))
    os.kill(process.pid, signal.SIGSTOP)
    try:
        os.waitpid(process.pid, os.WUNTRACED)  # stopped only once all of its threads are
        thread.start()
        thread.join(2 * CompilerLimits().trial_s)
        assert thread.is_alive()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    thread.join()
    assert len(made) == 1
    assert compiler._trial._process is process


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="threads' processor time is not told here")
def test_only_processor_time_of_compiling_is_limited():
    def compile_to(future: _Compilation, work: Callable[[], None]) -> None:
        future.run(lambda: (work(), "made")[1])

    waiting, endless, ended = _Compilation(), _Compilation(), threading.Event()
    threads = [
        threading.Thread(target=compile_to, args=(waiting, lambda: time.sleep(0.5))),
        threading.Thread(target=compile_to, args=(endless, lambda: [None for _ in iter(ended.is_set, True)])),
    ]
    for thread in threads:
        thread.start()
    assert waiting.within(0.2) == "made"
    with pytest.raises(FutureTimeout):
        endless.within(0.2)
    ended.set()
    for thread in threads:
        thread.join()


def test_a_trial_process_that_cannot_start(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(UnsupportedError, match="process that tries grammars"):
        Compiler(byte_vocabulary).compile(grammar_source(StructuredOutputsParams(regex="a")))
    assert Compiler(byte_vocabulary).compile(grammar_source(StructuredOutputsParams(json_object=True)))


def test_trials_end_with_their_compiler():
    compiler = Compiler(byte_vocabulary)
    compiler.compile(grammar_source(StructuredOutputsParams(regex="a")))
    assert compiler._trial is not None
    process = compiler._trial._process
    assert process is not None
    del compiler
    end_s = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end_s:  # its thread releases it just after the answer
        gc.collect()
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_thousand_schemas_leave_no_more_than_the_cache_holds():
    limits = CompilerLimits(cache_entries=50, cache_bytes=8000)
    compiler = Compiler(byte_vocabulary, limits)
    for i in range(1000):
        source = grammar_source(StructuredOutputsParams(json={"type": "object", "properties": {f"p{i}": {"const": i}}}))
        first = compiler.compile(source)
        assert compiler.compile(source) is first
        assert len(compiler._cache) <= limits.cache_entries
        assert compiler._cached_bytes == sum(kept.size for kept in compiler._cache) <= limits.cache_bytes


# Other requests


@pytest.fixture(scope="module")
def llm():
    with LLM(threads=1, n_ctx=512) as model:
        yield model


def test_streams_continue_while_a_form_is_refused(llm):
    """A running stream gets tokens between the start of an endless form and its error."""
    before, after = threading.Event(), threading.Event()
    errors: list[QuireError] = []

    def bomb() -> None:
        before.set()
        try:
            llm.generate("x", regex="a", params=SamplingParams(max_tokens=1))
            llm.generate("x", grammar=BOMBS["terminals in each other"]["grammar"])
        except QuireError as error:
            errors.append(error)
        after.set()

    thread = threading.Thread(target=bomb)
    n_during = 0
    for _ in range(20):  # as many answers as the form takes
        for i, delta in enumerate(llm.stream("Once upon a time", SamplingParams(max_tokens=400, ignore_eos=True))):
            if i == 0 and not before.is_set():
                thread.start()
                before.wait()
            if after.is_set():
                break
            n_during += len(delta.token_ids)
        if after.is_set():
            break
    thread.join()
    assert [type(error) for error in errors] == [RequestError]
    assert ENDLESS_ERRORS.search(str(errors[0]))
    assert n_during >= 5


AQUA = {"type": "json_schema", "json_schema": {"schema": {"const": "aqua"}}}


@pytest.mark.parametrize("form", [{"choice": ["aqua"]}, {"response_format": AQUA}], ids=["choice", "json"])
def test_a_vocabulary_without_the_needed_tokens_fails_closed(monkeypatch, form):
    """Without a token that has a q, the answer can be started but not completed."""
    with LLM(threads=1, n_ctx=128) as poor:
        whole = poor.tokenizer.all_token_bytes()
        monkeypatch.setattr(
            type(poor.tokenizer), "all_token_bytes", lambda self: [b"" if b"q" in t else t for t in whole]
        )
        with pytest.raises(RequestError, match="vocabulary has no tokens"):
            poor.generate("x", SamplingParams(max_tokens=20), **form)
        assert poor.generate("x", choice=["abc"])[0].text == "abc"
