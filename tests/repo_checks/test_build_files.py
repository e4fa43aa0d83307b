"""The build's changes to ggml: edits of sources, renamed functions, ARM architecture options."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(*parts: str) -> ModuleType:
    path = ROOT.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"{path} is missing: this is not a source tree")
    spec = importlib.util.spec_from_file_location(f"quire_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def edits(tmp_path: Path) -> ModuleType:
    module = script("vendor", "edits.py")
    module.EDITS = (module.Edit("a.cpp", "    first(", "    last(", "#if NEW", "#else\n    last(0);\n#endif"),)
    return module


def test_a_block_is_edited_once(edits: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.cpp"
    path.write_text("int a;\n    first(1);\n    middle();\n    last(2);\nint b;\n")
    for _ in range(2):
        edits.main([str(tmp_path)])
        assert path.read_text() == (
            "int a;\n#if NEW\n    first(1);\n    middle();\n    last(2);\n#else\n    last(0);\n#endif\nint b;\n"
        )
    assert [p.name for p in tmp_path.iterdir()] == ["a.cpp"]


@pytest.mark.parametrize(
    "text", ["", "    first(1);\n", "    last(1);\n    first(1);\n", "    first(1);\n    last(1);\n    last(2);\n"]
)
def test_text_that_is_not_as_known_is_refused(edits: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.cpp").write_text(text)
    with pytest.raises(SystemExit, match=r"a\.cpp: .*another version"):
        edits.main([str(tmp_path)])
    assert (tmp_path / "a.cpp").read_text() == text


def test_the_real_edit_finds_its_place() -> None:
    module = script("vendor", "edits.py")
    for edit in module.EDITS:
        path = ROOT / "vendor" / "ggml" / edit.path
        if not path.is_file():
            pytest.skip("ggml is not unpacked")
        text = module.edited(path.read_text(encoding="utf-8"), edit)
        assert text.count(edit.before) == 1
        assert module.edited(text, edit) == text


def test_functions_are_renamed_but_types_and_macros_are_not(tmp_path: Path) -> None:
    module = script("native", "cmake", "own_names.py")
    for name in module.HEADERS:
        path = tmp_path / "ggml" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "ggml" / module.HEADERS[0]).write_text(
        "// ggml_in_a_comment(int)\n#define ggml_macro(x) x\nvoid ggml_free (int);\nbool gguf_read(int);\n"
        "typedef void (*ggml_log_t)(int);\nvoid ggml_backend_init(void);\nint ggml_macro(1);\nsize_t quantize_q4(int);\n"
    )
    header = tmp_path / "out" / "names.h"
    module.main(tmp_path / "ggml", header)
    lines = header.read_text().splitlines()
    assert lines == [
        "#pragma once",
        "#define ggml_free quire_ggml_free",
        "#define gguf_read quire_gguf_read",
        "#define quantize_q4 quire_quantize_q4",
    ]


@pytest.mark.parametrize(
    ("features", "architecture"),
    [
        ("", "armv8-a"),
        ("DOTPROD", "armv8.2-a+dotprod"),
        ("FP16_VECTOR_ARITHMETIC DOTPROD MATMUL_INT8", "armv8.2-a+dotprod+fp16+i8mm"),
        ("DOTPROD SVE MATMUL_INT8", "armv8.2-a+dotprod+i8mm+sve"),
    ],
)
def test_the_architecture_of_an_arm_processor(tmp_path: Path, features: str, architecture: str) -> None:
    cmake = shutil.which("cmake")
    if cmake is None or not (ROOT / "native" / "cmake").is_dir():
        pytest.skip("no CMake, or no sources")
    macros = "\\n".join(f"#define __ARM_FEATURE_{name} 1" for name in features.split())
    text = tmp_path / "check.cmake"
    text.write_text(
        f'include({ROOT}/native/cmake/arm_arch.cmake)\nquire_arm_arch_of("{macros}" found)\nmessage("found ${{found}}")\n'
    )
    done = subprocess.run([cmake, "-P", str(text)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == f"found {architecture}"


def test_an_editable_install_and_ci_build_share_a_folder() -> None:
    if not (ROOT / "ci" / "build").is_file():
        pytest.skip("ci/build is absent: this is not a source tree")
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    overrides = project["tool"]["scikit-build"]["overrides"]
    editable = next(each for each in overrides if each["if"] == {"state": "editable"})
    build = (ROOT / "ci" / "build").read_text(encoding="utf-8")
    assert f"QUIRE_BUILD_FOLDER:-{editable['build-dir']}}}" in build
    assert editable["cmake"]["define"]["QUIRE_IN_PLACE"] == "ON"
    assert "-DQUIRE_IN_PLACE=ON" in build
    # Nobody would import a second copy that pip installs in another folder.
    components = {
        name
        for path in [ROOT / "native" / "cmake" / "python_modules.cmake", ROOT / "native" / "cmake" / "ggml.cmake"]
        for name in re.findall(r"COMPONENT (\w+)", path.read_text(encoding="utf-8"))
    }
    assert components.isdisjoint(editable["install"]["components"])
