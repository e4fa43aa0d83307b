"""Loading of modules: broken ones are reported, never end a command, and never run if only the CPU is wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import quire
from quire.errors import UnsupportedError
from quire.hardware import find_device, module_files, modules
from quire.hardware.modules import ModuleReport, load_modules
from stand_in_modules import ABORTS, FINDS_NOTHING, HANGS, HAS_NO_START, NEEDS_A_DRIVER, compiled, marks

pytestmark = [
    pytest.mark.python_only,
    pytest.mark.skipif(sys.platform != "linux", reason="the test modules are ELF files"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder searched for modules, in this process and in subprocesses."""
    monkeypatch.setenv("QUIRE_MODULE_PATH", str(tmp_path))
    monkeypatch.setattr(modules, "_reports", {})
    monkeypatch.setattr(module_files, "module_folders", lambda: [(tmp_path, "QUIRE_MODULE_PATH")])
    return tmp_path


def quire_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire", *arguments], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def only_report() -> ModuleReport:
    (report,) = load_modules()
    return report


@pytest.mark.parametrize(
    ("source", "state", "words"),
    [
        (ABORTS, "unusable", "SIGABRT: the driver is lost"),
        (FINDS_NOTHING, "no device", "found no device"),
        (HAS_NO_START, "unusable", "ggml_backend_init"),
        (NEEDS_A_DRIVER, "unusable", "quire_absent_driver"),
    ],
)
def test_a_broken_module_is_reported(
    folder: Path, source: str, state: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(folder, "cuda", source)
    with caplog.at_level("INFO", "quire"):
        report = only_report()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"[device] module {folder / 'libggml-cuda.so'}: {state}: ")
    assert words in said
    assert (report.module, report.source, report.state, report.devices) == ("cuda", "QUIRE_MODULE_PATH", state, ())
    assert words in report.reason
    assert report.advice
    with pytest.raises(UnsupportedError, match=r"'cuda' .*\bCPU\b.*libggml-cuda.so") as raised:
        find_device("cuda")
    assert words in str(raised.value)


def test_a_driver_that_hangs_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "START_S", 1.0)
    compiled(folder, "vulkan", HANGS)
    report = only_report()
    assert (report.state, report.reason) == ("unusable", "its driver did not answer within 1 s")


def test_modules_of_another_build_never_run(folder: Path) -> None:
    trace = folder / "ran"
    compiled(folder, "sycl", marks(trace), version="ggml 0.1.0 000000000000")
    assert "another build: ggml 0.1.0" in only_report().reason
    assert not trace.exists()


def test_the_cpu_needs_no_other_module(folder: Path) -> None:
    trace = folder / "ran"
    compiled(folder, "cuda", marks(trace))
    (folder / "libggml-vulkan.so").write_bytes(b"\x7fELF")
    done = quire_command("run", "--device", "cpu", "-n", "2", "Hello")
    assert done.returncode == 0, done.stderr
    assert not trace.exists()
    assert quire_command("run", "-n", "2", "Hello").returncode == 0
    assert not trace.exists()
    # Listing the devices tries the module in a process of its own and reports the failure.
    done = quire_command("devices", "--json")
    assert done.returncode == 0, done.stderr
    assert trace.exists()
    found = json.loads(done.stdout)
    assert [device["name"] for device in found["devices"]] == ["CPU"]
    told = {report["module"]: report for report in found["modules"]}
    assert "SIGABRT" in told["cuda"]["reason"]
    assert "truncated" in told["vulkan"]["reason"]
    done = quire_command("devices")
    assert "libggml-vulkan.so (QUIRE_MODULE_PATH): unusable: truncated" in done.stdout
    # With llama.cpp's options the command falls back to the CPU and says so once.
    done = quire_command("run", "-ngl", "99", "-n", "2", "Hello")
    assert done.returncode == 0
    assert done.stderr.count("running on the CPU") == 1


def test_only_modules_of_the_wanted_kind_are_tried(folder: Path) -> None:
    trace = folder / "ran"
    compiled(folder, "cuda", marks(trace))
    with pytest.raises(UnsupportedError, match=r'no module libggml-vulkan .*pip install "quire-llm\[vulkan\]"'):
        find_device("vulkan")
    with pytest.raises(UnsupportedError, match=r"no module libggml-hip .*QUIRE_HIP"):
        find_device("ROCm0")
    assert not trace.exists()
    with pytest.raises(UnsupportedError, match="SIGABRT"):
        find_device("cuda")


def test_a_file_with_several_names_is_tried_once(folder: Path) -> None:
    path = compiled(folder, "vulkan", FINDS_NOTHING)
    (folder / "libggml-vulkan-again.so").symlink_to(path)
    for name in ("libggml-cpu.so", "libggml-base.so", "libggml.so", "other.so"):
        (folder / name).write_text("")
    assert [file.path.resolve() for file in module_files.module_files()] == [path]


ABORT = """
import ctypes, quire
from pathlib import Path
quire.devices()
library = next(Path(quire.__file__).parent.glob("lib/libquire-ggml-base.*"))
ctypes.CDLL(str(library)).quire_ggml_abort(b"driver.cpp", 7, b"device lost")
"""


def test_an_abort_of_ggml_prints_its_reason_and_advice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABORT], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(quire.__file__).parent.parent)},
    )  # fmt: skip
    assert done.returncode < 0
    assert "driver.cpp:7: device lost" in done.stderr
    assert "quire devices --check" in done.stderr


ANOTHER_GGML = """
import ctypes, sys
other = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import quire
with quire.LLM(threads=1) as llm:
    print(llm.generate("Tell me a story about a fox", max_tokens=4)[0].text)
assert other.n_calls() == 0
"""


def test_another_ggml_with_global_symbols_does_not_replace_ours(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    if not (root / "vendor" / "ggml" / "include").is_dir():
        pytest.skip("the names of ggml's functions are unknown without the vendor folder")
    sys.path.insert(0, str(root / "native" / "cmake"))
    try:
        from own_names import names_in
    finally:
        sys.path.pop(0)
    names = sorted(names_in(root / "vendor" / "ggml"))
    assert len(names) > 500
    calls = "".join(f"void {name}(void) {{ ++calls; abort(); }}\n" for name in names)
    path = compiled(tmp_path, "other", f"static int calls;\nint n_calls(void) {{ return calls; }}\n{calls}")
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_GGML, str(path)], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(quire.__file__).parent.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
