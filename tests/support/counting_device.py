"""Two simulated devices that compute on the CPU and count their work; compiles tests/native/counting_device.cpp."""

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
    """Counts since the last ``reset``; the source explains each."""

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
    """The loaded module.  Its counts belong to the process, so only one test may use it at a time."""

    def __init__(self, module: Path) -> None:
        devices()  # loads the CPU backend, which the module uses
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
        """Return the number of launches of a ggml operation, such as ``FLASH_ATTN_EXT``."""
        return int(self._module.counting_launches(operation.encode()))

    def arm(self, kind: str, n: int) -> None:
        """Cause a fault at the n-th graph from now, or at the n-th ``allocation`` or ``upload``.

        Faults of graphs are ``fail`` and ``exhaust`` (by a status), ``throw``, ``abort`` (as ggml does) and ``hang``.
        """
        self._module.counting_arm(kind.encode(), ctypes.c_int64(n))

    @contextmanager
    def miscomputing(self, operation: str, row: int, *, is_after: bool = False) -> Iterator[None]:
        """Compute a ggml operation wrongly from ``row`` on (the first is 0).

        With ``is_after``, it is wrong in a step of one row that follows a step of more than ``row`` rows.
        """
        self._module.counting_miscompute(operation.encode(), ctypes.c_int64(row), int(is_after))
        try:
            yield
        finally:
            self._module.counting_miscompute(b"", ctypes.c_int64(0), 0)

    def held_bytes(self, number: int = 0) -> int:
        """Return the bytes of all buffers on a device."""
        return int(self._module.counting_held(number))

    def n_buffers(self, number: int = 0) -> int:
        return int(self._module.counting_buffers(number))

    def computes(self, number: int) -> int:
        """Return the number of graphs that a device computed since the last ``reset``."""
        return int(self._module.counting_computes(number))

    @contextmanager
    def memory(self, n_bytes: int, number: int = 0) -> Iterator[None]:
        """Limit a device's free memory to ``n_bytes`` beyond what it holds now."""
        self._module.counting_set_memory(number, ctypes.c_int64(self.held_bytes(number) + n_bytes))
        try:
            yield
        finally:
            self._module.counting_set_memory(number, ctypes.c_int64(1 << 34))

    @contextmanager
    def largest_buffer(self, n_bytes: int) -> Iterator[None]:
        """Limit the size of a buffer."""
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
        """Give the device Quire's own operations (native/cuda), computed by the CPU."""
        return self._switched_on(self._module.counting_have_own)

    def claiming_all(self) -> AbstractContextManager[None]:
        """Let the device claim to support every operation, like ggml's RPC backend."""
        return self._switched_on(self._module.counting_claim_all)

    @contextmanager
    def without(self, *operations: str) -> Iterator[None]:
        """Let the device report that it lacks operations."""
        for operation in operations:
            self._module.counting_refuse(operation.encode(), 1)
        try:
            yield
        finally:
            for operation in operations:
                self._module.counting_refuse(operation.encode(), 0)


def compiler() -> str:
    """Return the C++ compiler; skip the test if there is none."""
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("the test needs a C++ compiler")
    return found


def compiled_device(folder: Path) -> Path:
    """Compile the module into a folder; skip the test without a compiler or without ggml's source."""
    if not (GGML / "include").is_dir():
        pytest.skip("the counting device needs ggml's headers")
    libraries = Path(quire.__file__).parent / "lib"
    module = folder / "libggml-counting.so"
    source = ROOT / "tests" / "native" / "counting_device.cpp"
    command = [compiler(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden"]
    if sys.platform == "linux":  # where Quire's ggml has its own function names
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
    """Load the device in this process; skip the test if ``compiled_device`` does."""
    folder = Path(tempfile.mkdtemp(prefix="quire-counting-"))
    try:
        return CountingDevice(compiled_device(folder))
    finally:
        shutil.rmtree(folder)
