"""Grammars are compiled in a process of their own first: one that takes too long, or too much memory or stack, ends
that process and nothing else."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BusyError, QuireError, RequestError, UnsupportedError
from .deep_thread import PATIENT, STACK_BYTES
from .parser_limits import MAX_ITEMS_IN_ROW, MAX_LEXER_STATES

if TYPE_CHECKING:
    from .vocabulary import TokenVocabulary

__all__ = ["PATIENCE", "Trial", "too_slow"]

_LIMITS = {"max_lexer_states": MAX_LEXER_STATES, "max_items_in_row": MAX_ITEMS_IN_ROW}
MAX_BYTES = 1024 * 1024 * 1024
START_S = 20.0
# Limits are of processor time, as the clock's also tells how busy the machine is; by the clock, so many times as much.
PATIENCE = 20
_SPARE_S = 5.0


class Trial:
    """A process that compiles grammars for one vocabulary, each in a fork of its own.  Thread-safe; one at a time."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._at_exit: weakref.finalize[[subprocess.Popen[bytes]], Trial] | None = None

    def run(self, grammar: str, deadline_s: float) -> tuple[float, QuireError | None]:
        """Compile a grammar: the processor time that it took, and what is wrong with it, where something is.

        RequestError for one that does not end within ``deadline_s`` of processor time, or ends its process; BusyError
        where the process did not get so much.  Raises UnsupportedError where no process can be started.
        """
        with self._lock:
            process = self._process = self._process or self._start()
            most_s = deadline_s * PATIENCE
            work = [deadline_s, math.ceil(most_s) + 1, _LIMITS, grammar]
            try:
                answer = _ask(process, json.dumps(work).encode() + b"\n", most_s + _SPARE_S)
            except (BrokenPipeError, EOFError):
                answer = None
            if answer is None:  # even the fork's parent does not answer
                self._end()
                return deadline_s, BusyError("[grammar] the machine must have time to compile but has none")
        seconds, ended_by = json.loads(answer)
        if ended_by == signal.SIGALRM:
            return seconds, BusyError("[grammar] the machine must have time to compile but has none")
        if ended_by == signal.SIGPROF:
            return seconds, RequestError(too_slow(deadline_s))
        if ended_by != 0:
            return seconds, RequestError("[grammar] a grammar must be simple enough to compile but is not")
        return seconds, None

    def _start(self) -> subprocess.Popen[bytes]:
        program = str(Path(__file__).with_name("trial_process.py"))
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it
                # What is preloaded (sanitizers, allocators) may reserve more address space than the trial gets.
                env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            )
        except OSError as error:
            raise UnsupportedError(f"[grammar] a process must start in which grammars are tried but {error}") from error
        self._at_exit = weakref.finalize(self, _end, process)
        settings = {
            "path": sys.path,
            "max_bytes": MAX_BYTES,
            "stack_bytes": STACK_BYTES,
            "patience": PATIENT,
            "n_vocab": len(self._vocabulary.token_bytes),
            "control_ids": self._vocabulary.control_ids,
            "eog_ids": sorted(self._vocabulary.eog_ids),
        }
        try:
            ready = _ask(process, json.dumps(settings).encode() + b"\n", START_S)
        except (BrokenPipeError, EOFError):
            ready = None
        if ready is None:
            self._process = process
            self._end()
            raise UnsupportedError("[grammar] the process in which grammars are tried must start but did not")
        return process

    def _end(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None
        if self._at_exit is not None:
            self._at_exit.detach()
            self._at_exit = None


def too_slow(deadline_s: float) -> str:
    return f"[grammar] a grammar must compile within {deadline_s:g} s but did not"


def _ask(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes | None:
    """Write a line and wait for one; None where none came in time.  EOFError where none can come."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    if not select.select([process.stdout], [], [], seconds)[0]:
        return None
    answer = process.stdout.readline()
    if not answer:
        raise EOFError
    return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what it has forked
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    process.wait()
