"""Forms that mean harm: each is accepted or costs its own request a typed error, and nobody else anything."""

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

# What would run for minutes, or end the process; their errors are those of the trial.
TOO_LARGE = ["deep items", "a mebibyte", "wide regex"]
ENDLESS = ["5000 free keys", "many rules", "terminals in each other"]
# Why an endless form is refused: for its time where the machine is slow, for its size where the compiler gets that far.
ENDLESS_ERRORS = re.compile(r"must compile within 0\.\d s|simple enough|too big|must have at most|of more than")


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(byte_vocabulary)


@pytest.mark.parametrize("name", [name for name in BOMBS if name not in TOO_LARGE])
def test_accepted_or_refused(compiler, name):
    """What is accepted can be followed: no mask is empty, and none takes endless work."""
    refusal = followed(compiler, StructuredOutputsParams(**BOMBS[name]))
    assert refusal is None or len(refusal) < 500
    if name in ENDLESS:
        assert refusal is not None
        assert ENDLESS_ERRORS.search(refusal)


def followed(compiler: Compiler, form: StructuredOutputsParams) -> str | None:
    """Forty tokens of an answer; why not, where not."""
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
def test_too_large(name):
    with pytest.raises(RequestError, match=r"must have 1 to \d+ bytes"):
        StructuredOutputsParams(**BOMBS[name])


def test_a_grammar_that_would_end_the_process(compiler, monkeypatch):
    """Chains of rules are followed by recursion: where the stack ends, only the trial's process does."""
    monkeypatch.setattr("quire.grammar.trial.STACK_BYTES", 1 << 20)
    chain = "start: r0\n" + "".join(f'r{i}: r{i + 1} "x" | "y"\n' for i in range(9000)) + 'r9000: "a"'
    with pytest.raises(RequestError, match="must be simple enough"):
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


def test_a_busy_machine_s_time_is_not_the_grammar_s(compiler):
    """A trial that does not get the processor for longer than its limit goes on when it does."""
    compiler.compile(grammar_source(StructuredOutputsParams(regex="a")))
    process = compiler._trial._process
    made: list[object] = []
    other = grammar_source(StructuredOutputsParams(regex="a busy machine"))
    thread = threading.Thread(target=lambda: made.append(compiler.compile(other)))
    os.kill(process.pid, signal.SIGSTOP)
    try:
        os.waitpid(process.pid, os.WUNTRACED)  # it has stopped only when each of its threads has
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


def test_no_trial_without_a_program(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(UnsupportedError, match="a process must start in which grammars are tried"):
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
    while process.poll() is None and time.monotonic() < end_s:  # its thread lets go of it just after the answer
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


# Beside others


@pytest.fixture(scope="module")
def llm():
    with LLM(threads=1, n_ctx=512) as model:
        yield model


def test_others_go_on_while_a_form_is_refused(llm):
    """Between the beginning of an endless form and its error, a stream that has begun gets tokens."""
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
def test_a_vocabulary_that_cannot_say_it_fails_closed(monkeypatch, form):
    """Without any token that has a q, the form can be begun but not completed."""
    with LLM(threads=1, n_ctx=128) as poor:
        whole = poor.tokenizer.all_token_bytes()
        monkeypatch.setattr(
            type(poor.tokenizer), "all_token_bytes", lambda self: [b"" if b"q" in t else t for t in whole]
        )
        with pytest.raises(RequestError, match="the vocabulary must have tokens for what is to come"):
            poor.generate("x", SamplingParams(max_tokens=20), **form)
        assert poor.generate("x", choice=["abc"])[0].text == "abc"
