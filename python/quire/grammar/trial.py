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

from ..errors import CapacityError, RequestError, UnsupportedError

if TYPE_CHECKING:
    from .compiler import TokenVocabulary

__all__ = ["MAX_LEXER_STATES", "PATIENCE", "STACK_BYTES", "Trial", "too_slow"]

MAX_LEXER_STATES = 50_000
# Grammars may be chains of thousands of rules, which are followed by recursion.
STACK_BYTES = 64 * 1024 * 1024
MAX_BYTES = 1024 * 1024 * 1024
START_S = 20.0
# Limits are of processor time, as the clock's also tells how busy the machine is; by the clock, so many times as much.
PATIENCE = 10


class Trial:
    """A process that compiles grammars for one vocabulary.  Thread-safe; one grammar at a time."""

    def __init__(self, vocabulary: TokenVocabulary, queue_s: float) -> None:
        self._vocabulary, self._queue_s = vocabulary, queue_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._at_exit: weakref.finalize[[subprocess.Popen[bytes]], Trial] | None = None

    def run(self, grammar: str, deadline_s: float) -> None:
        """Compile a grammar, whatever comes of it.

        RequestError where it does not end within ``deadline_s`` of processor time, or ends the process; CapacityError
        while others are tried for too long; UnsupportedError where no process can be started.
        """
        if not self._lock.acquire(timeout=self._queue_s):
            raise CapacityError("[grammar] other grammars are being compiled: try again later")
        try:
            process = self._process = self._process or self._start()
            most_s = deadline_s * PATIENCE
            work = [deadline_s, math.ceil(most_s) + 1, MAX_LEXER_STATES, grammar]
            if not _ask(process, json.dumps(work).encode() + b"\n", most_s):
                self._end()
                raise RequestError(too_slow(deadline_s))
        except (BrokenPipeError, EOFError) as error:
            if self._end() == -signal.SIGPROF:
                raise RequestError(too_slow(deadline_s)) from None
            raise RequestError("[grammar] a grammar must be simple enough to compile but is not") from error
        finally:
            self._lock.release()

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
            "n_vocab": len(self._vocabulary.token_bytes),
            "control_ids": self._vocabulary.control_ids,
            "eog_ids": sorted(self._vocabulary.eog_ids),
        }
        try:
            ready = _ask(process, json.dumps(settings).encode() + b"\n", START_S)
        except (BrokenPipeError, EOFError):
            ready = False
        if not ready:
            self._process = process
            self._end()
            raise UnsupportedError("[grammar] the process in which grammars are tried must start but did not")
        return process

    def _end(self) -> int | None:
        """The process' exit status, if there is one."""
        status = None
        if self._process is not None:
            status = _end(self._process)
            self._process = None
        if self._at_exit is not None:
            self._at_exit.detach()
            self._at_exit = None
        return status


def too_slow(deadline_s: float) -> str:
    return f"[grammar] a grammar must compile within {deadline_s:g} s but did not"


def _ask(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bool:
    """Write a line and wait for one; False where none came in time.  EOFError where none can come."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    if not select.select([process.stdout], [], [], seconds)[0]:
        return False
    if not process.stdout.readline():
        raise EOFError
    return True


def _end(process: subprocess.Popen[bytes]) -> int:
    process.kill()  # no matter where it has ended by itself
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return process.wait()
