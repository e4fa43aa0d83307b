"""Modules in wheels of their own: found by entry point, version checked, after those of the package and the user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from quire import __version__
from quire._native import core
from quire.errors import UnsupportedError
from quire.hardware import find_device, module_files, modules
from quire.hardware.kinds import kind_named
from quire.hardware.module_files import ModuleFile
from quire.hardware.modules import ModuleReport, load_modules
from stand_in_modules import FINDS_NOTHING, compiled, marks

pytestmark = [
    pytest.mark.python_only,
    pytest.mark.skipif(sys.platform != "linux", reason="the test modules are ELF files"),
]


def installed(site: Path, name: str, *, version: str = __version__, value: str = "") -> Path:
    """Write what pip installs of a wheel ``quire-llm-NAME`` into ``site``; return the folder for its module."""
    info = site / f"quire_llm_{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: quire-llm-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[quire.modules]\n{name} = {value or f'quire_llm_{name}'}\n")
    folder = site / f"quire_llm_{name}"
    folder.mkdir()
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder, next to an empty folder in ``QUIRE_MODULE_PATH``; no module is loaded."""
    monkeypatch.setattr(modules, "_reports", {})
    (tmp_path / "given").mkdir()
    monkeypatch.setenv("QUIRE_MODULE_PATH", str(tmp_path / "given"))
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def of_kind(name: str) -> list[ModuleFile]:
    return module_files.module_files(kind_named(name))


def only_report(name: str) -> ModuleReport:
    (report,) = load_modules(kind_named(name))
    return report


def test_modules_of_wheels_come_after_those_of_the_user(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = site.parent / "given"
    folder = installed(site, "sycl")
    for place in (given, folder):
        (place / "libggml-sycl.so").write_bytes(b"")
    (folder / "libggml-cuda.so").symlink_to(given / "libggml-sycl.so")  # the same file is one module
    (folder / "libggml-cpu.so").write_bytes(b"")
    assert [(file.path.parent, file.source) for file in of_kind("sycl")] == [
        (given, "QUIRE_MODULE_PATH"), (folder, f"quire-llm-sycl {__version__}"),
    ]  # fmt: skip
    assert of_kind("cuda") == []
    assert [source for _, source in module_files.module_folders()] == ["quire", "QUIRE_MODULE_PATH"]

    loaded: list[str] = []
    monkeypatch.setattr(modules, "_tried", lambda file: modules._report(file, "loaded", ""))
    monkeypatch.setattr(core, "load_backend", loaded.append)
    reports = load_modules(kind_named("sycl"))
    assert [report.state for report in reports] == ["loaded", "not used"]
    assert loaded == [str(given / "libggml-sycl.so")]
    assert reports[1].reason == f"{loaded[0]} takes precedence"


def test_a_module_of_a_wheel_is_loaded_by_full_path_and_gone_when_uninstalled(site: Path) -> None:
    compiled(installed(site, "sycl"), "sycl", FINDS_NOTHING)
    report = only_report("sycl")
    path = site / "quire_llm_sycl" / "libggml-sycl.so"
    assert (report.path, report.source, report.state) == (str(path), f"quire-llm-sycl {__version__}", "no device")
    done = subprocess.run(
        [sys.executable, "-m", "quire", "devices"], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert f"{path} (quire-llm-sycl {__version__}): no device: it found no device to run on" in done.stdout
    shutil.rmtree(site / f"quire_llm_sycl-{__version__}.dist-info")
    assert of_kind("sycl") == []


def test_a_wheel_of_another_version_is_reported_and_never_runs(site: Path) -> None:
    trace = site / "ran"
    compiled(installed(site, "sycl", version="0.0.9"), "sycl", marks(trace))
    report = only_report("sycl")
    assert report.state == "unusable"
    assert f"quire-llm-sycl 0.0.9 does not match quire {__version__}" in report.reason
    with pytest.raises(UnsupportedError, match=f"pip install --force-reinstall quire-llm-sycl=={__version__}"):
        find_device("sycl")
    assert not trace.exists()


def test_a_module_of_another_build_is_refused_even_if_its_wheel_matches(site: Path) -> None:
    trace = site / "ran"
    compiled(installed(site, "sycl"), "sycl", marks(trace), version="ggml 0.1.0 000000000000")
    report = only_report("sycl")
    assert "another build: ggml 0.1.0" in report.reason
    assert "pip uninstall quire-llm-sycl" in report.advice
    assert not trace.exists()


@pytest.mark.parametrize("value", ["", "../given", "quire_llm_sycl.inner", "quire_llm_absent", "quire_llm_sycl:main"])
def test_a_wheel_without_a_module_in_its_folder_is_reported(site: Path, value: str) -> None:
    installed(site, "sycl", value=value)
    (site.parent / "given" / "libggml-cuda.so").write_bytes(b"")
    report = only_report("sycl")
    assert report.state == "unusable"
    assert "no module of quire-llm-sycl" in report.reason
