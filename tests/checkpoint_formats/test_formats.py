"""Checkpoints quantized by other programs, with the numbers they represent (support/quantized_checkpoints.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quantized_checkpoints import CASES, Case, Tensor, fp8, in_type, write_quantized, write_tensors
from quire._native.quant import dequantize
from quire.checkpoints.conversion import CheckpointReader, convert
from quire.checkpoints.formats import StoredCheckpoint
from quire.checkpoints.reading import Fields
from quire.cli.main import main
from quire.engine import LLM
from quire.errors import UnsupportedError
from quire.gguf import GGUFReader
from quire.quantization import plan, quantize_model

IDS = list(range(1, 40))
# GGUF types, by safetensors type.
DTYPES = {"F16": "f16", "BF16": "bf16", "F32": "bf16"}


def logits(model: Path) -> npt.NDArray[np.float32]:
    with LLM(model, threads=1, kv_dtype="f32") as llm:
        return llm.logits(IDS)


def check(folder: Path, case: Case, model: str = "llama", **options: object) -> set[str]:
    """Check every number, rounded to the library's type, and return the types of matrices.

    Writes ``plain.gguf`` with the same numbers in F32.
    """
    write_quantized(folder / "quantized", case, model, **options)  # type: ignore[arg-type]
    write_quantized(folder / "plain", case, model, plain=True, **options)  # type: ignore[arg-type]
    convert(folder / "plain", folder / "plain.gguf", "f32")
    plain = GGUFReader(folder / "plain.gguf")
    seen = set()
    with (
        CheckpointReader(folder / "quantized", folder, "bf16") as found,
        CheckpointReader(folder / "quantized", folder, "f32") as wide,
    ):
        assert {info.name for info in found.tensors if not info.name.endswith(".scale")} == {
            info.name for info in plain.tensors
        }
        for info in plain.tensors:
            expected = plain.tensor(info.name).numpy()
            if not re.search(r"(attn_[qkvo]\w*|ffn_(gate|up|down)\w*)\.weight", info.name) or "norm" in info.name:
                assert np.array_equal(dequantize(wide.tensor(info.name)), expected), info.name
                continue
            if "ffn_gate_inp" in info.name:
                continue
            tensor = found.tensor(info.name)
            seen.add(str(tensor.dtype))
            scale = info.name.replace(".weight", ".scale")
            factor = found.tensor(scale).numpy()[0] if scale in found else np.float32(1)
            rounded = "BF16" if case.library_dtype == "F32" else case.library_dtype
            values = in_type(dequantize(tensor) * factor, rounded)
            assert np.array_equal(values, in_type(expected, rounded)), info.name
            if not tensor.dtype.is_quantized:
                assert np.array_equal(dequantize(wide.tensor(info.name)), expected), info.name
    return seen


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """The logits are those of a model with the same numbers in F32."""
    case = CASES[name]
    assert check(tmp_path, case) == {case.kept or DTYPES[case.library_dtype]}
    expected, found = logits(tmp_path / "plain.gguf"), logits(tmp_path / "quantized")
    # Products with quantized matrices round activations to 8 bits, and BF16 is less precise than F32.
    assert np.median(np.abs(found - expected)) <= 0.02 * np.abs(expected).max()
    convert(tmp_path / "quantized", tmp_path / "quantized.gguf")
    assert np.array_equal(logits(tmp_path / "quantized.gguf"), found)


@pytest.mark.parametrize(
    ("name", "model", "dtypes"),
    [
        ("gptq", "qwen3moe", {"q4_0"}),
        ("ct-int4-zeros", "qwen2", {"q5_0"}),
        # Products of experts cannot be multiplied by a factor.
        ("ct-nvfp4", "qwen3moe", {"nvfp4", "bf16"}),
        ("bnb-nf4", "phi3", {"bf16"}),
        ("awq", "phi3", {"q5_0"}),
    ],
)
def test_architectures_do_not_see_quantization(tmp_path: Path, name: str, model: str, dtypes: set[str]) -> None:
    """Experts are stacked and matrices are fused as usual."""
    assert check(tmp_path, CASES[name], model, sizes={}) == dtypes
    expected, found = logits(tmp_path / "plain.gguf"), logits(tmp_path / "quantized")
    assert np.median(np.abs(found - expected)) <= 0.05 * np.abs(expected).max()


def test_log_and_file_describe_the_conversion(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    write_quantized(tmp_path / "a", CASES["gptq-act-order"])
    convert(tmp_path / "a", tmp_path / "a.gguf")
    fate = GGUFReader(tmp_path / "a.gguf").metadata.text("quire.checkpoint.quantization")
    assert re.fullmatch(r"gptq, 14 matrices: 14 dequantized to f16; \d+ bytes became 147456", fate)
    assert fate in caplog.text
    assert main(["info", str(tmp_path / "a")]) == 0
    assert f"quantization of the checkpoint: {fate}" in capsys.readouterr().out
    write_quantized(tmp_path / "b", CASES["gptq"])
    with CheckpointReader(tmp_path / "b", tmp_path, "f32") as reader:
        fate = reader.metadata.text("quire.checkpoint.quantization")
    assert re.fullmatch(r"gptq, 14 matrices: 14 kept exactly as q4_0; \d+ bytes became 41472", fate)


def test_quantize_treats_kept_matrices_as_quantized(tmp_path: Path) -> None:
    """``quire quantize`` rejects a matrix that is quantized in the file."""
    write_quantized(tmp_path / "a", CASES["gptq"], dtype="float32")
    write_quantized(tmp_path / "b", CASES["fp8-blocks"], dtype="float32")
    with CheckpointReader(tmp_path / "a", tmp_path, "f32") as reader:
        with pytest.raises(UnsupportedError, match="allow-requantize"):
            plan(reader, "Q8_0")
        quantize_model(reader, tmp_path / "copy.gguf", plan(reader, "COPY"))
    assert np.array_equal(logits(tmp_path / "copy.gguf"), logits(tmp_path / "a"))
    with CheckpointReader(tmp_path / "b", tmp_path, "f32") as reader:
        quantize_model(reader, tmp_path / "q8.gguf", plan(reader, "Q8_0"))
    with LLM(tmp_path / "b", threads=1, kv_dtype="f32", quantize="Q8_0") as llm:
        assert np.array_equal(logits(tmp_path / "q8.gguf"), llm.logits(IDS))


def test_biases_of_zeros_are_ignored(tmp_path: Path) -> None:
    """AutoGPTQ writes them for layers without biases."""

    def with_bias(value: float) -> Callable[[dict[str, Tensor]], None]:
        def change(tensors: dict[str, Tensor]) -> None:
            tensors["model.layers.0.mlp.up_proj.bias"] = "F16", np.full(128, value, np.float16)

        return change

    write_quantized(tmp_path / "a", CASES["gptq"], change=with_bias(0))
    convert(tmp_path / "a", tmp_path / "a.gguf")
    assert "blk.0.ffn_up.bias" not in GGUFReader(tmp_path / "a.gguf")
    write_quantized(tmp_path / "b", CASES["gptq"], change=with_bias(1))
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(
        json.dumps({**config, "mlp_bias": True})
    )  # otherwise the bias is excluded, as in transformers
    convert(tmp_path / "b", tmp_path / "b.gguf")
    assert (GGUFReader(tmp_path / "b.gguf").tensor("blk.0.ffn_up.bias").numpy() == 1).all()


def test_experts_may_have_4_bits_beside_8(tmp_path: Path) -> None:
    """DeepSeek V4 stores them so, with other names of the scales."""
    rng = np.random.default_rng(5)
    parts, numbers = fp8(rng, (80, 112), block=(32, 48), powers=True)
    codes, exponents = rng.integers(0, 16, (6, 64)), rng.integers(100, 130, (6, 2))
    tensors: dict[str, Tensor] = {
        "attn.wkv.weight": parts["weight"],
        "attn.wkv.scale": ("F8_E8M0", parts["weight_scale_inv"][1]),
        "experts.0.w1.weight": ("I8", (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        "experts.0.w1.scale": ("F8_E8M0", exponents.astype(np.uint8)),
    }
    write_tensors(tmp_path / "model.safetensors", tensors)
    config = {"quant_method": "fp8", "weight_block_size": [32, 48], "scale_fmt": "ue8m0", "expert_dtype": "fp4"}
    checkpoint = StoredCheckpoint(tmp_path, Fields("quantization_config", config))
    assert sorted(checkpoint) == ["attn.wkv.weight", "experts.0.w1.weight"]
    assert np.array_equal(checkpoint.values("attn.wkv.weight"), numbers)
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    expected = np.where(codes > 7, -1, 1) * magnitudes[codes % 8] * np.repeat(np.exp2(exponents - 127.0), 32, axis=1)
    assert np.array_equal(checkpoint.values("experts.0.w1.weight"), expected)
    assert checkpoint.matrices["experts.0.w1.weight"].exact_types() == ("mxfp4",)


@pytest.mark.parametrize("block", [(32, 48), None])
def test_experts_may_be_one_tensor_of_8_bits(tmp_path: Path, block: tuple[int, int] | None) -> None:
    rng, shape = np.random.default_rng(5), (80, 112)
    experts = [fp8(rng, shape, block=block) for _ in range(3)]
    scales = np.stack([parts["weight_scale_inv"][1] for parts, _ in experts])
    codes = np.stack([parts["weight"][1] for parts, _ in experts])
    tensors: dict[str, Tensor] = {"experts.up": ("F8_E4M3", codes), "experts.up_scale_inv": ("F32", scales)}
    write_tensors(tmp_path / "model.safetensors", tensors)
    config = {"quant_method": "fp8", "weight_block_size": None if block is None else list(block)}
    checkpoint = StoredCheckpoint(tmp_path, Fields("quantization_config", config))
    assert checkpoint.shape("experts.up") == (3, *shape)
    assert np.array_equal(checkpoint.values("experts.up"), np.stack([numbers for _, numbers in experts]))
