"""What the package's libraries hold, and what they must not: ggml's backend for other machines has no authentication.

Oracle: the names in the files themselves.
"""

from __future__ import annotations

from pathlib import Path

import quire


def test_no_library_speaks_to_other_machines() -> None:
    package = Path(quire.__file__).parent
    libraries = {path.name: path.read_bytes() for path in package.rglob("*.so*")}
    assert any(name.startswith("_native") for name in libraries)
    # The names of ggml's functions can be seen at all, so that their absence means something.
    assert any(b"ggml_backend_cpu" in content for content in libraries.values())
    assert [name for name, content in libraries.items() if b"ggml_backend_rpc" in content] == []
