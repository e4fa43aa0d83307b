#!/usr/bin/env python3
"""Write selftest/models.json: keys of tiny models, from which ``quire devices --check`` creates random models.

The keys come from the converted models of tests/tiny.  Run it with PYTHONPATH=python when one of those changes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

NAMES = (
    "llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "gpt-oss", "phi3", "gpt2", "bloom", "deepseek2", "glm4",
    "falcon", "mamba2", "bert", "lfm2", "qwen35", "rwkv7",
)  # fmt: skip
# Sizes for which devices have operators.
CHANGED = {"mamba2": {"mamba2.ssm.state_size": 128, "mamba2.ssm.inner_size": 96}}


def described(name: str, path: Path) -> dict[str, object]:
    """Return what a model reads from its file, except the values of its weights."""
    from quire.gguf import GGUFReader
    from quire.models import load_model
    from quire.nn import Weights

    reader = GGUFReader(path)
    there: set[str] = set()
    rows: dict[str, int] = {}
    has, n_rows = Weights.has, Weights.n_rows

    def noted_has(self: Weights, name: str) -> bool:
        found = has(self, name)
        if found:
            there.add(self._prefix + name)
        return found

    def noted_rows(self: Weights, name: str) -> int:
        rows[self._prefix + name] = n_rows(self, name)
        return rows[self._prefix + name]

    Weights.has, Weights.n_rows = noted_has, noted_rows  # type: ignore[method-assign]
    try:
        load_model(reader)
    finally:
        Weights.has, Weights.n_rows = has, n_rows  # type: ignore[method-assign]
    keys = {}
    for key in reader.metadata:
        if key.startswith(("tokenizer.", "general.")) and key != "general.architecture":
            continue
        value = reader.metadata[key]
        value = CHANGED.get(name, {}).get(key, value)
        keys[key] = [reader.metadata.type_of(key), value.tolist() if isinstance(value, np.ndarray) else value]
    # Use all experts: if two scores are nearly equal, a device may rightly choose another expert than the CPU.
    for used, there in (("expert_used_count", "expert_count"), ("expert_group_used_count", "expert_group_count")):
        for key in [key for key in keys if key.endswith(f".{used}")]:
            keys[key] = keys[key.replace(used, there)]
    return {"keys": keys, "there": sorted(there), "rows": rows}


def main() -> None:
    from quire.checkpoints.conversion import convert
    from tiny_checkpoints import write_checkpoint

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            write_checkpoint(Path(folder) / name, name)
            out = Path(folder) / f"{name}.gguf"
            convert(Path(folder) / name, out, "f32")
            found[name] = described(name, out)
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    target = ROOT / "python" / "quire" / "selftest" / "models.json"
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
