"""Quantizing models while they are read.  Oracle: the file that ``quire quantize`` writes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from quantize_cases import write_source
from quire.engine import LLM
from quire.errors import RequestError, UnsupportedError
from quire.gguf import GGUFReader
from quire.quantization import plan, quantize_model

IDS = list(range(1, 40))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An f32 file, next to the folder of its checkpoint.  Experts are stacked when they are read."""
    path = write_source(tmp_path_factory.mktemp("loading"), "mixtral")
    old = path.stat().st_mtime - 60
    os.utime(path, (old, old))  # a file younger than two seconds has no identity
    return path


def logits(model: Path, **options: object) -> np.ndarray:
    with LLM(model, threads=1, kv_dtype="f32", **options) as llm:  # type: ignore[arg-type]
        return llm.logits(IDS)


def test_the_model_equals_the_quantized_file(source: Path, tmp_path: Path) -> None:
    reader = GGUFReader(source)
    quantize_model(reader, tmp_path / "q8.gguf", plan(reader, "Q8_0"))
    expected = logits(tmp_path / "q8.gguf")
    assert not np.array_equal(expected, logits(source))
    assert np.array_equal(logits(source, quantize="q8_0"), expected)
    assert np.array_equal(logits(source.with_suffix(""), quantize="Q8_0"), expected)


@pytest.mark.parametrize("quantize", [None, "Q8_0"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_packed_weights_are_cached(source: Path, tmp_path: Path, quantize: str | None, is_folder: bool) -> None:
    model = source.with_suffix("") if is_folder else source
    expected = logits(model, quantize=quantize)
    for _ in range(2):
        assert np.array_equal(logits(model, quantize=quantize, packed_cache=tmp_path), expected)
    assert list(tmp_path.glob("*.packed"))


def test_invalid_types_are_errors(source: Path) -> None:
    with pytest.raises(RequestError, match="unknown type"):
        LLM(source, quantize="nonsense")
    with pytest.raises(UnsupportedError, match="already"):
        LLM(quantize="Q4_0")
