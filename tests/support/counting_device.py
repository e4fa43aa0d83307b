"""Two devices that compute as the CPU does and count what is asked of them: tests/native/counting_device.cpp, compiled here."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import quire
from quire._native.core import Device, devices, find_device, load_backend, module_version

__all__ = ["CountingDevice", "Counts", "compiled_device", "compiler", "counting_device"]

ROOT = Path(__file__).resolve().parents[2]
GGML = ROOT / "vendor" / "ggml"


@dataclass(frozen=True)
class Counts:
    """Since the last ``reset``; the source says what each is."""

    computes: int
    launches: int
    uploads: int
    upload_bytes: int
    downloads: int
    download_bytes: int
    copies: int
    copied_bytes: int
    synchronizations: int
    cache_bytes: int
    largest_buffer_bytes: int


class CountingDevice:
    """The loaded module.  Its counts are the process's: one test at a time."""

    def __init__(self, module: Path) -> None:
        devices()  # which loads the CPU's backend, which the module computes by
        load_backend(str(module))
        self._module = ctypes.CDLL(str(module))
        self._module.counting_launches.restype = ctypes.c_int64
        self._module.counting_held.restype = self._module.counting_computes.restype = ctypes.c_int64
        self._module.counting_buffers.restype = ctypes.c_int64
        self.device: Device = find_device("Counting0")
        self.other: Device = find_device("Counting1")

    def reset(self) -> None:
        self._module.counting_reset()

    def counts(self) -> Counts:
        numbers = (ctypes.c_int64 * len(Counts.__dataclass_fields__))()
        self._module.counting_get(numbers)
        return Counts(*numbers)

    def launches(self, operation: str) -> int:
        """Of one of ggml's operations, such as ``FLASH_ATTN_EXT``."""
        return int(self._module.counting_launches(operation.encode()))

    def arm(self, kind: str, n: int) -> None:
        """A fault at the n-th compute from now: ``fail`` (by a status), ``exhaust`` (likewise), ``throw``, ``abort`` (as
        ggml ends a process), ``hang``; or at the n-th ``allocation`` or ``upload``."""
        self._module.counting_arm(kind.encode(), ctypes.c_int64(n))

    @contextmanager
    def miscomputing(self, operation: str, row: int, *, is_after: bool = False) -> Iterator[None]:
        """One of ggml's operations is computed wrongly from that row on (the first is 0); or where a step has one row of it
        after a step of more than ``row``."""
        self._module.counting_miscompute(operation.encode(), ctypes.c_int64(row), int(is_after))
        try:
            yield
        finally:
            self._module.counting_miscompute(b"", ctypes.c_int64(0), 0)

    def held_bytes(self, number: int = 0) -> int:
        """Of all buffers on the device of that number."""
        return int(self._module.counting_held(number))

    def n_buffers(self, number: int = 0) -> int:
        return int(self._module.counting_buffers(number))

    def computes(self, number: int) -> int:
        """Graphs on the device of that number, since the last ``reset``."""
        return int(self._module.counting_computes(number))

    @contextmanager
    def memory(self, n_bytes: int, number: int = 0) -> Iterator[None]:
        """So many bytes are free on the device of that number, beside what it holds now; nothing more is given."""
        self._module.counting_set_memory(number, ctypes.c_int64(self.held_bytes(number) + n_bytes))
        try:
            yield
        finally:
            self._module.counting_set_memory(number, ctypes.c_int64(1 << 34))

    @contextmanager
    def largest_buffer(self, n_bytes: int) -> Iterator[None]:
        """No buffer may be larger."""
        self._module.counting_set_largest(ctypes.c_int64(n_bytes))
        try:
            yield
        finally:
            self._module.counting_set_largest(ctypes.c_int64(0))

    @contextmanager
    def _switched_on(self, switch: Callable[[int], None]) -> Iterator[None]:
        switch(1)
        try:
            yield
        finally:
            switch(0)

    def own_operations(self) -> AbstractContextManager[None]:
        """The device has Quire's own operations (native/cuda), computed by the CPU."""
        return self._switched_on(self._module.counting_have_own)

    def claiming_all(self) -> AbstractContextManager[None]:
        """The device says of every operation that it has it, as ggml's RPC backend does."""
        return self._switched_on(self._module.counting_claim_all)

    @contextmanager
    def without(self, *operations: str) -> Iterator[None]:
        """The device says that it lacks them."""
        for operation in operations:
            self._module.counting_refuse(operation.encode(), 1)
        try:
            yield
        finally:
            for operation in operations:
                self._module.counting_refuse(operation.encode(), 0)


def compiler() -> str:
    """Of C++; skips the test where there is none."""
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("the test needs a C++ compiler")
    return found


def compiled_device(folder: Path) -> Path:
    """Compile the module into a folder; skips the test where there is no compiler, or no source of ggml."""
    if not (GGML / "include").is_dir():
        pytest.skip("the counting device needs ggml's headers")
    libraries = Path(quire.__file__).parent / "lib"
    module = folder / "libggml-counting.so"
    source = ROOT / "tests" / "native" / "counting_device.cpp"
    command = [compiler(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden"]
    if sys.platform == "linux":  # where our ggml has names of its own
        names = folder / "own-names.h"
        subprocess.run([sys.executable, ROOT / "native/cmake/own_names.py", GGML, names], check=True, timeout=60)
        command += ["-include", str(names)]
    command += [f'-DQUIRE_MODULE_VERSION="{module_version()}"']
    command += [f"-I{GGML / 'include'}", f"-I{GGML / 'src'}", f"-I{ROOT / 'native'}", str(source), "-o", str(module)]
    command += [f"-L{libraries}", "-lquire-ggml", "-lquire-ggml-base", f"-Wl,-rpath,{libraries}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return module


@cache
def counting_device() -> CountingDevice:
    """The device in this process; skips the test as ``compiled_device`` does."""
    folder = Path(tempfile.mkdtemp(prefix="quire-counting-"))
    try:
        return CountingDevice(compiled_device(folder))
    finally:
        shutil.rmtree(folder)
