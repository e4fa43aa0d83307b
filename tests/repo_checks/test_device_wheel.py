"""The package finds what ci/device_wheel packs: the same names, the same version."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import quire
from quire.hardware import module_files
from quire.hardware.kinds import kind_named

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = ROOT / "ci" / "device_wheel.py"
    if not path.is_file() or not (ROOT / "vendor" / "ggml").is_dir():
        pytest.skip("this is not a source tree with ggml")
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location("quire_device_wheel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["vulkan", "cuda", "rocm", "sycl"])
def test_a_packed_module_is_found(
    script: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = kind_named(name)
    assert kind is not None
    assert (script.KINDS[name].module, script.KINDS[name].option) == (kind.module, kind.option)
    (tmp_path / "module").write_bytes(b"not looked into")
    site = tmp_path / "site"
    script.write_tree(site, name, tmp_path / "module", script.version_of_quire())
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(module_files, "module_folders", list)
    (file,) = module_files.module_files(kind)
    assert file.path == site / f"quire_llm_{name}" / f"libggml-{kind.module}.so"
    assert (file.source, file.refusal) == (f"quire-llm-{name} {quire.__version__}", "")
    others = ["nvidia-cublas>=13.0,<14", "nvidia-cuda-runtime>=13.0,<14"] if name == "cuda" else []
    assert metadata.requires(f"quire-llm-{name}") == [f"quire-llm=={quire.__version__}", *others]
    assert kind.extra in ("", name)


def test_extras_bring_the_wheels_that_the_package_names() -> None:
    from quire.hardware.kinds import KINDS

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for kind in KINDS:
        for name in kind.names:
            assert (f'{name} = ["quire-llm-{name}"]' in text) == (name == kind.extra)
