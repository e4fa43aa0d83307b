"""The package's libraries are complete, lack ggml's RPC backend (it has no authentication), and find each other.

Oracle: the names in the files themselves, and the system's loader.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import quire


def test_no_library_speaks_to_other_machines() -> None:
    package = Path(quire.__file__).parent
    libraries = {path.name: path.read_bytes() for path in package.rglob("*.so*")}
    assert any(name.startswith("_native") for name in libraries)
    # Names of ggml's functions are visible, so that the absence of one is meaningful.
    assert any(b"ggml_backend_cpu" in content for content in libraries.values())
    assert [name for name, content in libraries.items() if b"ggml_backend_rpc" in content] == []


@pytest.mark.skipif(sys.platform != "linux", reason="LD_LIBRARY_PATH is for Linux's loader")
def test_another_ggml_is_not_taken_for_ours(tmp_path: Path) -> None:
    # LD_LIBRARY_PATH may point to llama.cpp's libraries, and has precedence over the package's folder.
    for name in ("ggml", "ggml-base", "ggml-cpu"):
        for suffix in ("so", "so.0"):
            (tmp_path / f"lib{name}.{suffix}").write_text("another release")
    script = "import quire; print(quire.Tensor.empty('f32', [1]).device.name)"
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LD_LIBRARY_PATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("CPU", 0), done.stderr
