"""Backend modules that fail like broken modules or drivers, compiled with the system's compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from quire._native.core import module_version

_NOTE = """
struct note {{ unsigned name_size, text_size, type; char name[8]; char text[64]; }};
__attribute__((section(".note.quire"), used, aligned(4))) static const struct note note = {{6, 64, 1, "Quire", "{version}"}};
"""
_HEADERS = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"

ABORTS = 'void *ggml_backend_init(void) { fputs("the driver is lost\\n", stderr); abort(); }'
FINDS_NOTHING = "void *ggml_backend_init(void) { return 0; }"
HANGS = "void *ggml_backend_init(void) { for (;;) pause(); }"
HAS_NO_START = "int unrelated(void) { return 1; }"
NEEDS_A_DRIVER = (
    "extern int quire_absent_driver(void); void *ggml_backend_init(void) { return quire_absent_driver() ? 0 : 0; }"
)


def marks(path: Path) -> str:
    """Return the source of a module that writes a file when it is loaded, and then crashes."""
    return (
        f'__attribute__((constructor)) static void start(void) {{ fclose(fopen("{path}", "w")); abort(); }}'
        + FINDS_NOTHING
    )


def compiled(folder: Path, name: str, source: str, *, version: str | None = None) -> Path:
    """Compile C source to ``libggml-NAME.so``, with a note that it belongs to this build, or to ``version``."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: modules that fail cannot be made")
    text = folder / f"{name}.c"
    text.write_text(_HEADERS + _NOTE.format(version=version or module_version()) + source)
    out = folder / f"libggml-{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(out), str(text)], check=True, timeout=60)
    return out
