"""The script that counts which of other programs' model names open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.python_only
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "coverage.py"


def test_coverage_names_what_opens_and_what_does_not() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPT), "--json"], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert set(found) == {"llama.cpp", "transformers", "vLLM", "transformers, classifiers", "vLLM, pooling"}
    for row in found.values():
        assert row["open"] + len(row["missing"]) == row["names"]
        assert set(row["fallback"]) <= set(row["missing"])
    assert not {"llama", "eagle3", "qwen3moe"} & set(found["llama.cpp"]["missing"])
    assert "wavtokenizer-dec" in found["llama.cpp"]["missing"]
    assert "BartForCausalLM" in found["transformers"]["fallback"]
    assert "WhisperForCausalLM" in found["transformers"]["missing"]
    assert "LLaMAForCausalLM" not in found["vLLM"]["missing"]  # spelled as in old checkpoints
    assert "ColQwen3" in found["vLLM, pooling"]["missing"]
    assert "GPT2ForSequenceClassification" not in found["vLLM, pooling"]["missing"]
