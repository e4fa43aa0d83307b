"""Checkpoints with MXFP4 experts: files have the same numbers in another layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quire._native.quant import dequantize
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion.run import CheckpointReader
from quire.errors import LoadError, UnsupportedError
from quire.gguf import GGUFReader
from test_models import Runner
from tiny_checkpoints import config_of, shapes_of, tokenizer_json, weight_of

NAMES = {"F32": np.float32, "U8": np.uint8}
# 4-bit numbers (OCP Microscaling Formats 1.0): a sign, two bits of exponent, one of mantissa.
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def numbers(blocks: npt.NDArray[np.uint8], exponents: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Unpack two neighbours from each byte, the lower bits first."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    signed = np.where(codes >= 8, -VALUES[codes & 7], VALUES[codes & 7])
    return (signed * np.exp2(exponents.astype(np.float32) - 127)[..., None]).reshape(*blocks.shape[:-2], -1)


def write(folder: Path, *, packed: bool, shift: int = 0, **fields: object) -> dict[str, npt.NDArray[np.generic]]:
    """Write gpt-oss with widths of whole blocks, and experts as MXFP4 or dequantized."""
    config = {**config_of("gpt-oss"), "hidden_size": 64, "intermediate_size": 96, **fields}
    if packed:
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    rng, tensors = np.random.default_rng(5), {}
    for name, shape in shapes_of("gpt-oss").items():
        grown = tuple({48: 64, 40: 96, 80: 192}.get(n, n) for n in shape)
        grown = (96, 64) if name.endswith(("q_proj.weight",)) else (64, 96) if name.endswith("o_proj.weight") else grown
        if "q_proj.bias" in name:
            grown = (96,)
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = weight_of("gpt-oss", name, grown)
            continue
        n, n_in, n_out = grown
        blocks = rng.integers(0, 256, (n, n_out, n_in // 32, 16), np.uint8)
        exponents = rng.integers(121, 126, (n, n_out, n_in // 32 + shift), np.uint8)
        if packed:
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": exponents}
        else:
            tensors[name] = numbers(blocks, exponents).swapaxes(1, 2).copy()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    header, offset = {}, 0
    for name, values in tensors.items():
        dtype = next(code for code, kind in NAMES.items() if values.dtype == kind)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    data = b"".join(values.tobytes() for values in tensors.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return tensors


def test_packed_experts_stay_as_they_are(tmp_path: Path) -> None:
    write(tmp_path / "packed", packed=True)
    write(tmp_path / "plain", packed=False)
    convert(tmp_path / "packed", tmp_path / "packed.gguf", "f32")
    convert(tmp_path / "plain", tmp_path / "plain.gguf", "f32")
    packed, plain = GGUFReader(tmp_path / "packed.gguf"), GGUFReader(tmp_path / "plain.gguf")
    with CheckpointReader(tmp_path / "packed", tmp_path, "bf16") as opened:
        for info in plain.tensors:
            found = packed.tensor(info.name)
            assert str(found.dtype) == ("mxfp4" if "_exps.weight" in info.name else "f32")
            assert np.array_equal(dequantize(found), plain.tensor(info.name).numpy()), info.name
            if "_exps.weight" in info.name:
                assert np.array_equal(opened.tensor(info.name).numpy(), found.numpy())
    ids = list(range(3, 40))
    expected = Runner(tmp_path / "plain.gguf").logits(ids)
    # MXFP4 products round activations to 8 bits, which may change the expert of a few tokens.
    difference = np.abs(Runner(tmp_path / "packed.gguf").logits(ids) - expected)
    assert np.median(difference) <= 0.02 * np.abs(expected).max()


def test_transformers_reads_the_same_numbers() -> None:
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    rng = np.random.default_rng(3)
    blocks, exponents = rng.integers(0, 256, (2, 6, 3, 16), np.uint8), rng.integers(100, 150, (2, 6, 3), np.uint8)
    theirs = mxfp4.convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(exponents), dtype=torch.float32
    )
    assert np.array_equal(theirs.numpy().swapaxes(1, 2), numbers(blocks, exponents))


def test_inputs_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "a", packed=True, shift=1)
    with pytest.raises(LoadError, match=r"blocks and scales of 'blk\.0\.ffn_gate_exps\.weight'"):
        convert(tmp_path / "a", tmp_path / "x.gguf")
    write(tmp_path / "b", packed=False, quantization_config={"quant_method": "aqlm"})
    with pytest.raises(UnsupportedError, match="quant_method"):
        convert(tmp_path / "b", tmp_path / "x.gguf")
