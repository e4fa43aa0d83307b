#!/usr/bin/env python3
"""What this machine can do at most: the denominators of the other benchmarks.

    limits.py [--threads 2] [--rounds 5]

Read bandwidth: the best of one to eight places that every thread reads at a time, of memory that no cache holds.
Peaks: dot products of 8-bit integers, products of bfloat16 and of single precision in registers or tiles, by the best
instructions that cpuid shows: AMX where there is some.  limits.cpp is compiled for this machine on the first use, by
``$CXX`` or g++ or clang++.
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
        raise SystemExit("limits.py: a C++ compiler must be there ($CXX, g++, clang++) to measure limits")
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
    """Measures the limits of this machine with ``threads`` threads, again at every call: they vary with the neighbours.

    ``memory_bytes`` are kept as long as this lives; they must be several times what the last cache holds.
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
        """Bytes a second that all threads read together."""
        return max(
            float(self._library.quire_read_speed(self._memory, self._size, self.threads, n_streams))
            for n_streams in STREAMS
        )

    def instruction(self, kind: Kind) -> str:
        """What :meth:`peak` measures, such as ``"AMX int8"``; empty where this machine has nothing for ``kind``."""
        return str(self._library.quire_peak_name(KINDS.index(kind)).decode())

    def peak(self, kind: Kind, seconds: float = 0.1) -> float:
        """Operations a second of all threads together, multiplications and additions counted each; 0: not measured."""
        return float(self._library.quire_peak_speed(KINDS.index(kind), self.threads, seconds))


def _busy_seconds() -> float:
    """Of all cores together, since the system began: user, nice, system; what a hypervisor took counts, too."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split()[1:9]]
    return (sum(fields[:3]) + sum(fields[5:])) / os.sysconf("SC_CLK_TCK")


def other_load(seconds: float = 0.5) -> float:
    """How many cores other processes used in the next ``seconds``, on Linux; 0 elsewhere."""
    if not Path("/proc/stat").exists():
        return 0.0
    begin, busy, own = time.monotonic(), _busy_seconds(), sum(os.times()[:4])
    time.sleep(seconds)
    others = _busy_seconds() - busy - (sum(os.times()[:4]) - own)
    return max(0.0, others / (time.monotonic() - begin))


def wait_until_quiet(seconds: float) -> float:
    """Until others leave the machine alone, or so long; their load, which is part of a report."""
    deadline = time.monotonic() + seconds
    while (load := other_load()) > QUIET_CORES and time.monotonic() < deadline:
        pass
    return load


def warning_of_load(loads: list[float]) -> str:
    """A sentence on whether the machine was quiet when each of ``loads`` was measured."""
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
            print(f"{kind:16} nothing of this machine is known here")
            continue
        peak = statistics.median(machine.peak(kind) for _ in range(options.rounds))
        print(f"{kind:16} {peak / 1e9:9.0f} G operations/s ({machine.instruction(kind)})")
    loads.append(other_load())
    print(warning_of_load(loads))


if __name__ == "__main__":
    main()
