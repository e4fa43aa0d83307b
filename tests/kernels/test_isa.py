"""Detection of instruction sets, against the flags that Linux reports."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest
from quire._native import kernels

# The flags that each set needs, best set last.
X86 = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx2vnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"},
}
X86["avx512vnni"] = X86["avx512"] | {"avx512_vnni"}
X86["avx512bf16"] = X86["avx512vnni"] | {"avx512_bf16"}
X86["avx512amx"] = X86["avx512bf16"] | {"amx_tile", "amx_int8", "amx_bf16"}
ARM = {"neon": {"asimddp"}, "neoni8mm": {"asimddp", "i8mm"}}


def may_use_tiles() -> bool:
    request_permission, tile_data, arch_prctl = 0x1023, 18, 158
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


@pytest.mark.slow  # the build with sanitizers leaves some out
@pytest.mark.pythons
def test_the_systems_flags_name_the_same_instruction_sets() -> None:
    info = Path("/proc/cpuinfo")
    machine = platform.machine()
    label = {"x86_64": "flags", "aarch64": "Features"}.get(machine)
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() and label else []
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.split(":")[0].strip() == label), None)
    if flags is None:
        pytest.skip(f"no /proc/cpuinfo with the flags of a processor of {machine}")
    expected = [name for name, needed in (X86 if machine == "x86_64" else ARM).items() if needed <= flags]
    if "avx512amx" in expected and not may_use_tiles():
        expected.remove("avx512amx")
    assert kernels.supported_isas() == ["portable", *expected]
