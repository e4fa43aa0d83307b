"""Compiles CUDA kernels of native/cuda for the CPU, with tests/native/cuda_emulator.h."""

from __future__ import annotations

import atexit
import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from counting_device import compiler

__all__ = ["aligned", "batch_kernels", "emulated_kernels", "expert_kernels"]

ROOT = Path(__file__).resolve().parents[2]


def emulated_kernels(folder: Path, *sources: str) -> ctypes.CDLL:
    """Compile sources into a library in a folder and load it; skip the test where that is impossible."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("the kernels' emulator needs fibers and halves")
    library = folder / "kernels.so"
    command = [compiler(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-clobbered", "-Werror"]
    command += ["-shared", "-fPIC", f"-I{ROOT / 'native'}", *(str(ROOT / source) for source in sources)]
    command += ["-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def arranging_kernels(source: str) -> Path:
    """Return a library that is kept until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="quire-kernels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    emulated_kernels(folder, source, "native/cuda/arranged_matrix.cpp")
    return folder / "kernels.so"


@cache
def batch_kernels() -> Path:
    """Return the library of the kernels for few rows."""
    return arranging_kernels("tests/native/cuda_batch.cpp")


@cache
def expert_kernels() -> Path:
    """Return the library of the kernels for layers of experts."""
    return arranging_kernels("tests/native/cuda_experts.cpp")


def aligned(x: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Return a copy whose address is a multiple of 64."""
    room = np.empty(x.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    made = room[begin : begin + x.nbytes].view(np.uint16).reshape(x.shape)
    made[...] = x
    return made
