"""Finding devices by name, and the effect of a failed self-test.  The devices are fakes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from quire._native import core
from quire.errors import UnsupportedError
from quire.hardware import Verdict, choice, find_device, has_gpu, verdict_of
from quire.hardware.verdicts import identity_of, keep_verdict


@dataclass(frozen=True)
class FakeDevice:
    name: str
    backend: str
    kind: str = "gpu"
    description: str = "a card"
    memory_total_bytes: int = 1 << 30


CPU = FakeDevice("CPU", "CPU", "cpu")
DEVICES = (
    CPU, FakeDevice("Vulkan0", "Vulkan"), FakeDevice("CUDA0", "CUDA", description="first"),
    FakeDevice("CUDA1", "CUDA", description="second"), FakeDevice("MTL0", "MTL"), FakeDevice("ROCm0", "ROCm"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choice, "load_modules", lambda kind=None: [])
    monkeypatch.setattr(core, "devices", lambda: list(DEVICES))


def fail(device: Any) -> None:
    keep_verdict(device, Verdict(False, "model llama differs", device.name, device.description))


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("gpu", "Vulkan0"), ("GPU", "Vulkan0"), ("cuda", "CUDA0"), ("Cuda1", "CUDA1"), ("vulkan", "Vulkan0"),
        ("metal", "MTL0"), ("mtl0", "MTL0"), ("rocm", "ROCm0"), ("hip", "ROCm0"),
    ],
)  # fmt: skip
def test_names_and_kinds(wanted: str, name: str) -> None:
    assert find_device(wanted).name == name


@pytest.mark.parametrize("wanted", ["CUDA2", "sycl", "toaster", ""])
def test_an_unknown_device_is_an_error_that_lists_the_available_ones(wanted: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{wanted}' .*CPU, Vulkan0, CUDA0, CUDA1, MTL0, ROCm0"):
        find_device(wanted)


def test_a_device_that_failed_its_check_is_used_only_by_name(caplog: pytest.LogCaptureFixture) -> None:
    cuda: Any = DEVICES[2]
    fail(cuda)
    assert find_device("cuda").name == "CUDA1"
    assert "skipping CUDA0" in caplog.text
    assert find_device("CUDA0").name == "CUDA0"
    fail(DEVICES[3])
    with pytest.raises(UnsupportedError, match="failed 'quire devices --check'"):
        find_device("cuda")
    assert has_gpu()
    for device in DEVICES:
        if device.kind == "gpu":
            fail(device)
    assert not has_gpu()


def test_a_verdict_applies_to_one_device_with_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    first: Any = DEVICES[2]
    other: Any = DEVICES[3]
    fail(first)
    found = verdict_of(first)
    assert found is not None
    assert (found.passed, found.reason) == (False, "model llama differs")
    assert verdict_of(other) is None
    before = identity_of(first)
    monkeypatch.setattr("quire.hardware.verdicts._drivers", lambda: ["libcuda.so.999 1 1"])
    assert identity_of(first) != before
    assert verdict_of(first) is None


def test_a_malformed_verdict_file_is_ignored(tmp_path: Path) -> None:
    device: Any = DEVICES[1]
    path = keep_verdict(device, Verdict(True, "", "Vulkan0", "a card"))
    for text in ("", "[]", '{"passed": 1}', '{"passed": "yes", "reason": "", "device": "", "description": ""}'):
        path.write_text(text)
        assert verdict_of(device) is None
