"""Write quantize.json: hashes of the files that llama.cpp's quantizer writes, for tests.

python tests/references/make_quantize_references.py .../llama-quantize
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from quantize_cases import OPTIONS, TINY, mixes_of, write_importance, write_source  # noqa: E402


def quantized(program: str, source: Path, mix: str, *options: str) -> str | None:
    """Return the hash of the file; None if the program refuses."""
    out = source.with_suffix(".out")
    out.unlink(missing_ok=True)
    done = subprocess.run(
        [program, *options, source.name, out.name, mix], cwd=source.parent, capture_output=True, check=False
    )
    return hashlib.sha256(out.read_bytes()).hexdigest()[:24] if done.returncode == 0 else None


def main() -> None:
    program = str(Path(sys.argv[1]).resolve())
    found: dict[str, dict[str, str | None]] = {}
    for name in ("package", *TINY):
        with tempfile.TemporaryDirectory() as folder:
            source = write_source(Path(folder), name)
            write_importance(Path(folder) / "imatrix.gguf", source)
            of_model = found[name] = {}
            for mix in mixes_of(name):
                of_model[mix] = quantized(program, source, mix)
                of_model[f"{mix}+imatrix"] = quantized(program, source, mix, "--imatrix", "imatrix.gguf")
            for option, (mix, arguments, _) in OPTIONS.items():
                of_model[option] = quantized(program, source, mix, *arguments)
    (HERE / "quantize.json").write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
