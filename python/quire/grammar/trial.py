"""Try grammars in a separate process first.

A grammar that takes too long, or too much memory or stack, ends only that process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BusyError, QuireError, RequestError, UnsupportedError
from ..system import GROUP, TRIES_GO_ON, Lines, end_group, taken_s
from .deep_thread import PATIENT, STACK_BYTES
from .parser_limits import MAX_ITEMS_IN_ROW, MAX_LEXER_STATES

if TYPE_CHECKING:
    from .vocabulary import TokenVocabulary

__all__ = ["PATIENCE", "Trial", "too_slow"]

_LIMITS = {"max_lexer_states": MAX_LEXER_STATES, "max_items_in_row": MAX_ITEMS_IN_ROW}
MAX_BYTES = 1024 * 1024 * 1024
START_S = 20.0
# Limits are on processor time, because wall time also depends on the machine's load.  Wall time may be this many times
# as long.
PATIENCE = 20
_SPARE_S = 5.0
_LOOK_S = 0.05


class Trial:
    """A process that compiles grammars for one vocabulary, each in a fork if the system can fork.  Thread-safe."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None
        self._at_exit: weakref.finalize[[subprocess.Popen[bytes]], Trial] | None = None

    def run(self, grammar: str, deadline_s: float) -> tuple[float, QuireError | None]:
        """Compile a grammar; return the processor time that it took and its error, if any.

        The error is RequestError if the grammar takes more than ``deadline_s`` of processor time or ends its process,
        and BusyError if the process did not get that much time.

        Raises:
            UnsupportedError: The process cannot be started.
        """
        with self._lock:
            process = self._process = self._process or self._start()
            most_s = deadline_s * PATIENCE
            work = [deadline_s, math.ceil(most_s) + 1, _LIMITS, grammar]
            try:
                seconds, how = self._ask(process, work, most_s + _SPARE_S, deadline_s)
                goes_on = TRIES_GO_ON or how == "done"
            except TimeoutError:  # not even the parent of the fork answers
                seconds, how, goes_on = deadline_s, "late", False
            except (OSError, EOFError):  # without a fork, the grammar has ended the process itself
                seconds, how, goes_on = deadline_s, "late" if TRIES_GO_ON else "broken", False
            if not goes_on:
                self._end()
        if how == "late":
            return seconds, BusyError("[grammar] the machine is too busy to compile grammars: try again later")
        if how == "slow":
            return seconds, RequestError(too_slow(deadline_s))
        if how != "done":
            return seconds, RequestError("[grammar] the grammar is too complex to compile")
        return seconds, None

    def _start(self) -> subprocess.Popen[bytes]:
        program = str(Path(__file__).with_name("trial_process.py"))
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Preloaded libraries (sanitizers, allocators) may reserve more address space than the trial may use.
                env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
                **GROUP,
            )
        except OSError as error:
            raise UnsupportedError(f"[grammar] cannot start the process that tries grammars: {error}") from error
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
        assert process.stdout is not None
        self._lines = Lines(process.stdout)
        try:
            self._ask(process, settings, START_S)
        except (OSError, EOFError):
            self._process = process
            self._end()
            raise UnsupportedError("[grammar] the process that tries grammars ended while it started") from None
        return process

    def _ask(
        self, process: subprocess.Popen[bytes], task: object, seconds: float, processor_s: float = math.inf
    ) -> Any:
        """Write a line and wait for the answer.  TimeoutError if none comes in time, EOFError if the process has ended.

        Without forks, which end by themselves, a task that takes more than ``processor_s`` is reported as slow here:
        compiling may block the other threads of the process.
        """
        assert process.stdin is not None
        assert self._lines is not None
        begun_s, end_s = taken_s(process), time.monotonic() + seconds
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
        while True:
            try:
                answer = self._lines.next(seconds if TRIES_GO_ON else _LOOK_S)
            except TimeoutError:
                if not TRIES_GO_ON and taken_s(process) - begun_s > processor_s:
                    return [taken_s(process) - begun_s, "slow"]
                if time.monotonic() > end_s:
                    raise
            else:
                if answer is None:
                    raise EOFError
                return json.loads(answer)

    def _end(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None
        if self._at_exit is not None:
            self._at_exit.detach()
            self._at_exit = None


def too_slow(deadline_s: float) -> str:
    return f"[grammar] the grammar takes more than {deadline_s:g} s to compile"


def _end(process: subprocess.Popen[bytes]) -> None:
    end_group(process)  # with its forks; the reader of its output closes the pipe
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait()
