"""Checkpoints that other programs quantized, beside the numbers that they stand for (support/quantized_checkpoints.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quantized_checkpoints import CASES, in_type, write_quantized
from quire._native.quant import dequantize
from quire.convert import CheckpointReader, convert
from quire.engine import LLM
from quire.gguf import GGUFReader

IDS = list(range(1, 40))
# Types of files by those of safetensors.
DTYPES = {"F16": "f16", "BF16": "bf16", "F32": "bf16"}


def logits(model: Path) -> npt.NDArray[np.float32]:
    with LLM(model, threads=1, kv_dtype="f32") as llm:
        return llm.logits(IDS)


def plain_names(layer: str) -> str:
    return layer.replace(".weight", "")


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """Every number, once rounded to the library's type, and logits of the model as those of the same numbers in F32."""
    case = CASES[name]
    write_quantized(tmp_path / "quantized", case)
    write_quantized(tmp_path / "plain", case, plain=True)
    convert(tmp_path / "plain", tmp_path / "plain.gguf", "f32")
    plain = GGUFReader(tmp_path / "plain.gguf")
    seen = set()
    with (
        CheckpointReader(tmp_path / "quantized", tmp_path, "bf16") as found,
        CheckpointReader(tmp_path / "quantized", tmp_path, "f32") as wide,
    ):
        for info in plain.tensors:
            expected = plain.tensor(info.name).numpy()
            is_matrix = ("attn_" in info.name or "ffn_" in info.name) and "norm" not in info.name
            if not is_matrix:
                assert np.array_equal(dequantize(wide.tensor(info.name)), expected)
                continue
            tensor = found.tensor(info.name)
            seen.add(str(tensor.dtype))
            factor = 1.0
            if f"{info.name[:-7]}.scale" in found:
                factor = found.tensor(f"{info.name[:-7]}.scale").numpy()[0]
            values = dequantize(tensor) * factor
            target = "BF16" if case.library_dtype == "F32" else case.library_dtype
            assert np.array_equal(in_type(values, target), in_type(expected, target)), info.name
            if not case.kept:
                assert np.array_equal(dequantize(wide.tensor(info.name)), expected), info.name
    assert seen == {case.kept or DTYPES[case.library_dtype]}
    convert(tmp_path / "quantized", tmp_path / "quantized.gguf")
    expected = logits(tmp_path / "plain.gguf")
    difference = np.abs(logits(tmp_path / "quantized") - expected)
    assert np.median(difference) <= 0.02 * np.abs(expected).max()
    assert np.array_equal(logits(tmp_path / "quantized.gguf"), logits(tmp_path / "quantized"))
