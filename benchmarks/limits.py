#!/usr/bin/env python3
"""Measure this machine's limits, to which the other benchmarks relate their figures.

    limits.py [--threads 2] [--rounds 5]

The read bandwidth is the best result of every thread reading at one to eight places at a time, from memory larger than
all caches.  Peaks are of dot products of 8-bit integers, and of products of bfloat16 and of single precision, in
registers or tiles, with the best instructions that cpuid shows, including AMX.  On first use, limits.cpp is compiled
for this machine by ``$CXX``, g++ or clang++.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import Literal

__all__ = ["Kind", "Machine", "other_load", "wait_until_quiet", "warning_of_load"]

Kind = Literal["int8", "bf16", "f32"]
KINDS: tuple[Kind, ...] = ("int8", "bf16", "f32")
STREAMS = (1, 2, 4, 8)
MEMORY_BYTES = 512 << 20
QUIET_CORES = 0.2


def _compiled() -> ctypes.CDLL:
    source = Path(__file__).with_name("limits.cpp")
    known = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    compiler = next((c for c in known if c and shutil.which(shlex.split(c)[0])), None)
    if compiler is None:
        raise SystemExit("limits.py: no C++ compiler ($CXX, g++, clang++), which is needed to measure limits")
    with tempfile.TemporaryDirectory(prefix="quire-limits-") as folder:
        library = Path(folder) / "limits.so"
        flags = ["-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*shlex.split(compiler), *flags, "-o", str(library), str(source)], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.quire_pages.restype = ctypes.c_void_p
    loaded.quire_pages.argtypes = [ctypes.c_size_t]
    loaded.quire_free_pages.restype = None
    loaded.quire_free_pages.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    loaded.quire_read_speed.restype = ctypes.c_double
    loaded.quire_read_speed.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    loaded.quire_peak_name.restype = ctypes.c_char_p
    loaded.quire_peak_name.argtypes = [ctypes.c_int]
    loaded.quire_peak_speed.restype = ctypes.c_double
    loaded.quire_peak_speed.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_double]
    return loaded


class Machine:
    """Measures this machine's limits with ``threads`` threads, anew at every call, as they vary with others' load.

    ``memory_bytes``, several times the size of the last cache, stay allocated for the lifetime of the object.
    """

    def __init__(self, threads: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self.threads = threads
        self._library = _compiled()
        self._size = memory_bytes
        self._memory = self._library.quire_pages(memory_bytes)
        if not self._memory:
            raise MemoryError(f"limits.py: {memory_bytes} bytes are needed to measure the read bandwidth")
        weakref.finalize(self, self._library.quire_free_pages, self._memory, memory_bytes)

    def read_bandwidth(self) -> float:
        """Measure the bytes per second that all threads together read."""
        return max(
            float(self._library.quire_read_speed(self._memory, self._size, self.threads, n_streams))
            for n_streams in STREAMS
        )

    def instruction(self, kind: Kind) -> str:
        """Return what :meth:`peak` measures, such as ``"AMX int8"``; empty if this machine has nothing for ``kind``."""
        return str(self._library.quire_peak_name(KINDS.index(kind)).decode())

    def peak(self, kind: Kind, seconds: float = 0.1) -> float:
        """Measure the operations per second of all threads (multiplications plus additions); 0 if not measured."""
        return float(self._library.quire_peak_speed(KINDS.index(kind), self.threads, seconds))


def _busy_seconds() -> float:
    """Return the seconds that all cores were busy since boot: user, nice, system, and stolen by a hypervisor."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split()[1:9]]
    return (sum(fields[:3]) + sum(fields[5:])) / os.sysconf("SC_CLK_TCK")


def other_load(seconds: float = 0.5) -> float:
    """Measure how many cores other processes use during ``seconds``, on Linux; 0 elsewhere."""
    if not Path("/proc/stat").exists():
        return 0.0
    begin, busy, own = time.monotonic(), _busy_seconds(), sum(os.times()[:4])
    time.sleep(seconds)
    others = _busy_seconds() - busy - (sum(os.times()[:4]) - own)
    return max(0.0, others / (time.monotonic() - begin))


def wait_until_quiet(seconds: float) -> float:
    """Wait until the machine is quiet, at most ``seconds``; return the other processes' load, for the report."""
    deadline = time.monotonic() + seconds
    while (load := other_load()) > QUIET_CORES and time.monotonic() < deadline:
        pass
    return load


def warning_of_load(loads: list[float]) -> str:
    """Return a sentence that says whether the machine was quiet when ``loads`` were measured."""
    if max(loads) <= QUIET_CORES:
        return f"The machine was quiet: other processes took at most {max(loads):.2f} cores."
    n_busy = sum(load > QUIET_CORES for load in loads)
    return (
        f"THE MACHINE WAS NOT QUIET: other processes took up to {max(loads):.2f} cores, "
        f"more than {QUIET_CORES} before {n_busy} of {len(loads)} measurements."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    machine = Machine(options.threads)
    print(f"{options.threads} threads, medians of {options.rounds}")
    loads = [other_load()]
    speeds = [machine.read_bandwidth() for _ in range(options.rounds)]
    print(f"{'read bandwidth':16} {statistics.median(speeds) / 1e9:9.1f} GB/s")
    for kind in KINDS:
        if not machine.instruction(kind):
            print(f"{kind:16} cannot be measured on this machine")
            continue
        peak = statistics.median(machine.peak(kind) for _ in range(options.rounds))
        print(f"{kind:16} {peak / 1e9:9.0f} G operations/s ({machine.instruction(kind)})")
    loads.append(other_load())
    print(warning_of_load(loads))


if __name__ == "__main__":
    main()
