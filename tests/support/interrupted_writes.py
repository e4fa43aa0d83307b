"""Kill writers of files at each step of writing, and run them on a full disk.

``python interrupted_writes.py SOURCE.gguf IMATRIX.gguf FOLDER`` prints a JSON object with the number of kills and the
errors found, for each kind of file.  Each try is a separate process, forked before there are threads.  A full disk is
simulated by a limit on file sizes, which stops writes like ENOSPC.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from quire.cli.curve_picture import write_picture
from quire.errors import CapacityError
from quire.evaluation.base_file import BaseWriter
from quire.files import whole_file
from quire.files.whole_file import WholeFile
from quire.gguf import GGUFReader
from quire.quantization import Importance, plan, quantize_model

Job = Callable[[Path], None]
BEFORE = b"what was there before"
FULL = 7  # the exit code after a CapacityError
MOST_KILLS = 60


def jobs(source: Path, imatrix: Path) -> dict[str, Job]:
    """Return a writer for each kind of file."""

    def quantize(path: Path) -> None:
        reader = GGUFReader(source)
        quantize_model(reader, path, plan(reader, "Q4_0"), threads=1)

    def base(path: Path) -> None:
        rows = [list(range(32))] * 3
        with BaseWriter(path, rows, 37) as writer:
            for _ in rows:
                writer.write(np.random.default_rng(1).standard_normal((15, 37)).astype(np.float32))

    return {
        "quantized": quantize,
        "imatrix": lambda path: Importance.read(imatrix).write(path),
        "older imatrix": lambda path: Importance.read(imatrix).write_older(path),
        "base": base,
        "picture": lambda path: write_picture(path, [(3, 0.1), (4, 0.01)], (3.5, 0.05)),
    }


def forked(work: Callable[[], None]) -> int:
    """Do the work in a forked process; return its exit status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except CapacityError:
            code = FULL
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killing(job: Job, path: Path, step: int) -> Callable[[], None]:
    """Return the job with a kill at one of the steps of writing; pieces are written in halves."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            count()
            made = function(*given, **named)
            count()
            return made

        return run

    def work() -> None:
        write = WholeFile.write

        def in_halves(self: WholeFile, data: Any) -> None:
            view = memoryview(data).cast("B")
            write(self, view[: len(view) // 2])
            self._file.flush()
            count()
            write(self, view[len(view) // 2 :])
            self._file.flush()
            count()

        WholeFile.write = in_halves  # type: ignore[method-assign]
        for name in ("fsync", "replace", "chmod"):
            setattr(os, name, counted(getattr(os, name)))
        whole_file._made_beside = counted(whole_file._made_beside)
        job(path)

    return work


def tried(job: Job, folder: Path) -> dict[str, Any]:
    """Kill the writer at each step, each time followed by the next try, and then write on a full disk."""
    folder.mkdir()
    path, wrong, kills = folder / "out", [], 0
    job(path)
    whole = path.read_bytes()
    n_steps = 0
    while n_steps < MOST_KILLS:
        n_steps += 1
        path.write_bytes(BEFORE)
        status = forked(killing(job, path, n_steps))
        beside = [name for name in os.listdir(folder) if name != "out"]
        if status == 0:
            break
        kills += 1
        if status != -signal.SIGKILL or path.read_bytes() not in (BEFORE, whole) or len(beside) > 1:
            wrong.append(
                f"killed at step {n_steps}: status {status}, {len(path.read_bytes())} bytes, beside it {beside}"
            )
    path.write_bytes(BEFORE)
    job(path)
    if path.read_bytes() != whole or os.listdir(folder) != ["out"]:
        wrong.append(f"left at the end: {os.listdir(folder)}")
    for part in (0, 10, 50, 99):
        path.write_bytes(BEFORE)
        limit = len(whole) * part // 100

        def full(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            job(path)

        status = forked(full)
        if status != FULL or path.read_bytes() != BEFORE or os.listdir(folder) != ["out"]:
            wrong.append(f"disk for {part} %: status {status}, {os.listdir(folder)}")
    return {"kills": kills, "wrong": wrong}


def main() -> None:
    source, imatrix, folder = map(Path, sys.argv[1:])
    made = jobs(source, imatrix)
    print(json.dumps({name: tried(job, folder / name) for name, job in made.items()}))


if __name__ == "__main__":
    main()
