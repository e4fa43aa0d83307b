"""Truncated or foreign module files, and those of another build, are refused without running any of their code."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
import quire
from quire._native.core import check_module_file, module_version
from quire.errors import LoadError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only ELF files are checked")
LIB = Path(quire.__file__).parent / "lib"


def cpu_module() -> bytes:
    return next(iter(sorted(LIB.glob("libggml-cpu*.so")))).read_bytes()


def test_the_modules_of_the_package_pass() -> None:
    for path in LIB.glob("libggml-*.so"):
        check_module_file(str(path))
    assert module_version().startswith("ggml ")


@pytest.mark.parametrize("keep", [0, 3, 40, 63, 64, 1000, 100_000, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "libggml-cuda.so"
    path.write_bytes(cpu_module()[:keep])
    with pytest.raises(LoadError, match=r"libggml-cuda.so': (truncated|empty|not a shared library)"):
        check_module_file(str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b"text" + b[4:], "not a shared library"),
        (lambda b: b[:18] + struct.pack("<H", 0xFFFF) + b[20:], "for this machine"),
        (lambda b: b[:16] + struct.pack("<H", 2) + b[18:], "for this machine"),  # a program
        (lambda b: b.replace(b"Quire\0\0\0ggml 0", b"Quire\0\0\0ggml 9"), "another build: ggml 9"),
        (lambda b: b.replace(b"Quire\0\0\0ggml 0", b"Other\0\0\0ggml 0"), "not built with Quire"),
        # A note that claims to be longer than its segment.
        (lambda b: b.replace(struct.pack("<III", 6, 64, 1) + b"Quire\0", struct.pack("<III", 6, 1 << 31, 1) + b"Quire\0"), "not built"),
    ],
)  # fmt: skip
def test_a_foreign_file_is_refused(tmp_path: Path, change: object, words: str) -> None:
    path = tmp_path / "libggml-cuda.so"
    before = cpu_module()
    path.write_bytes(change(before))  # type: ignore[operator]
    assert path.read_bytes() != before
    with pytest.raises(LoadError, match=words):
        check_module_file(str(path))


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.so"):
        with pytest.raises(LoadError, match=f"'{path}': not a regular file"):
            check_module_file(str(path))
