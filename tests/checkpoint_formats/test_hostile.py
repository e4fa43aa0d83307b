"""Quantized checkpoints that are broken, inconsistent or unknown: each is rejected by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from quantized_checkpoints import CASES, Tensor, is_quantized, write_quantized, write_tensors
from quire.checkpoints.conversion import convert
from quire.checkpoints.formats import StoredCheckpoint
from quire.checkpoints.reading import Fields
from quire.errors import LoadError, QuireError, UnsupportedError
from tiny_checkpoints import shapes_of

UP = "model.layers.0.mlp.up_proj"
Change = Callable[[dict[str, Tensor]], None]


def without(part: str) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[f"{UP}.{part}"]

    return change


def put(part: str, dtype: str, values: object, kind: str) -> Change:
    """Replace a tensor."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{UP}.{part}"] = dtype, np.array(values, kind)

    return change


def text(part: str, words: str) -> Change:
    return put(part, "U8", list(words.encode()), "u1")


STATE = "weight.quant_state.bitsandbytes__nf4"
NEW = '{"quant_type": "nf4", "blocksize": %s, "dtype": "bfloat16", "shape": %s}'
# A case, the change of its tensors, and a pattern of the error.
TENSORS: dict[str, tuple[str, Change, str]] = {
    "no qzeros": ("gptq", without("qzeros"), "up_proj.qzeros"),
    "no scales": ("gptq", without("scales"), "up_proj.scales"),
    "scales of another shape": ("gptq", put("scales", "F16", np.ones((3, 128)), "f2"), r"up_proj.scales' .*\[2, 128\]"),
    "scales of words": ("gptq", put("scales", "I32", np.ones((2, 128)), "i4"), "up_proj.scales' is I32"),
    "qweight of floats": ("gptq", put("qweight", "F32", np.ones((8, 128)), "f4"), "up_proj.qweight' is F32"),
    "qweight is empty": ("gptq", put("qweight", "I32", np.ones((0, 128)), "i4"), r"\[0, 128\]"),
    "qweight of one dimension": ("gptq", put("qweight", "I32", np.ones(8), "i4"), "2 dimensions"),
    "a group that is not there": ("gptq", put("g_idx", "I32", [2] * 64, "i4"), "g_idx' has groups from 2 to 2"),
    "a group below 0": ("gptq", put("g_idx", "I32", [-1] * 64, "i4"), "g_idx' has groups from -1"),
    "too few columns in g_idx": ("gptq", put("g_idx", "I32", [0] * 32, "i4"), r"g_idx' .*\[32\].* \[64\]"),
    "g_idx of floats": ("gptq", put("g_idx", "F32", [0] * 64, "f4"), "g_idx' is F32"),
    "twice": ("gptq", put("weight", "F32", np.ones((128, 64)), "f4"), "up_proj.weight'"),
    "awq without zeros": ("awq", without("qzeros"), "up_proj.qzeros"),
    "awq scales": ("awq", put("scales", "F16", np.ones((2, 64)), "f2"), "up_proj.scales"),
    "fp8 without scale": ("fp8-blocks", without("weight_scale_inv"), "up_proj.weight_scale_inv"),
    "fp8 of another grid": ("fp8-blocks-powers", put("weight_scale_inv", "F32", np.ones((3, 2)), "f4"), r"\[3, 2\].* \[4, 2\]"),
    "packed shape lies": ("ct-int4", put("weight_shape", "I64", [128, 640], "i8"), "weight_packed' has shape"),
    "packed shape below 0": ("ct-int4", put("weight_shape", "I64", [-128, -64], "i8"), "weight_packed' has shape"),
    "no zero points": ("ct-int4-zeros", without("weight_zero_point"), "weight_zero_point"),
    "zero points": ("ct-int4-zeros", put("weight_zero_point", "I32", np.ones((16, 3)), "i4"), "weight_zero_point"),
    "no global scale": ("ct-nvfp4", without("weight_global_scale"), "weight_global_scale"),
    "global scale 0": ("ct-nvfp4", put("weight_global_scale", "F32", [0], "f4"), "weight_global_scale' is 0.0"),
    "global scale NaN": ("ct-nvfp4", put("weight_global_scale", "F32", [np.nan], "f4"), "weight_global_scale' is nan"),
    "mxfp4 exponents": ("ct-mxfp4", put("weight_scale", "U8", np.ones((128, 1)), "u1"), r"weight_scale' has shape \[128, 1\]"),
    "no state": ("bnb-nf4", without(STATE), "quant_state"),
    "state is no JSON": ("bnb-nf4", text(STATE, "{"), "JSON"),
    "state is a list": ("bnb-nf4", text(STATE, "[1]"), "JSON object"),
    "state of another shape": ("bnb-nf4", text(STATE, NEW % (64, "[64, 64]")), "4096.* 2048"),
    "state of one dimension": ("bnb-nf4", text(STATE, NEW % (64, "[8192]")), r"'shape' .*\[8192\]"),
    "blocks of 0": ("bnb-nf4", text(STATE, NEW % (0, "[128, 64]")), "blocksize"),
    "blocks of 32": ("bnb-nf4", text(STATE, NEW % (32, "[128, 64]")), "absmax"),
    "no table": ("bnb-nf4", without("weight.quant_map"), "quant_map"),
    "no nested table": ("bnb-nf4-nested", without("weight.nested_quant_map"), "nested_quant_map"),
    "no SCB": ("bnb-int8", without("SCB"), "up_proj"),
    "columns, not rows": ("bnb-int8", put("weight_format", "U8", 1, "u1"), "weight_format'"),
    "hqq packing": ("hqq", text("packing", "5bit_u9"), "packing"),
    "hqq axis": ("hqq", put("axis", "I32", 2, "i4"), "axis' is 2"),
    "hqq group": ("hqq", put("group_size", "I32", 60, "i4"), "groups of 60"),
    "hqq shape": ("hqq", put("shape", "I64", [128, 128], "i8"), "W_q"),
    "hqq codes as floats": ("hqq", put("view_as_float", "U8", 1, "u1"), "view_as_float'"),
}  # fmt: skip
ONE = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
# A case, fields of quantization_config, and a pattern of the error.
FIELDS: dict[str, tuple[str, dict[str, object], type[QuireError], str]] = {
    "method": ("gptq", {"quant_method": "aqlm"}, UnsupportedError, "'quant_method' of 'quantization_config'.*'aqlm'"),
    "no method": ("gptq", {"quant_method": None}, UnsupportedError, "quant_method"),
    "another method": ("gptq", {"quant_method": "hqq"}, QuireError, "hqq|unknown tensor"),
    "bits": ("gptq", {"bits": 5}, UnsupportedError, "'bits'"),
    "other bits": ("gptq", {"bits": 8}, LoadError, "scales"),
    "bits as text": ("gptq", {"bits": "4"}, LoadError, "'bits'"),
    "no bits": ("gptq", {"bits": None}, LoadError, "'bits'"),
    "group": ("gptq", {"group_size": 48}, LoadError, r"\[2, \d+\]|\[3, 64\]"),
    "form": ("gptq", {"checkpoint_format": "marlin"}, UnsupportedError, "marlin"),
    "floats": ("gptq", {"data_type": "mx_fp"}, UnsupportedError, "'data_type'"),
    "modules of their own": ("gptq", {"dynamic": {"+:.*up.*": {"bits": 8}}}, UnsupportedError, "'dynamic'"),
    "a new field": ("gptq", {"rotation": "hadamard"}, UnsupportedError, "'rotation'"),
    "gemv": ("awq", {"version": "gemv"}, UnsupportedError, "gemv"),
    "no zero points": ("awq", {"zero_point": False}, UnsupportedError, "'zero_point'"),
    "awq of 3 bits": ("awq", {"bits": 3}, UnsupportedError, "'bits'"),
    "quantized, but excepted": ("awq", {"modules_to_not_convert": ["mlp.up_proj"]}, LoadError, "'mlp.up_proj'"),
    "layers excepted": ("fp8-blocks", {"modules_to_not_convert": ["model.layers.1"]}, LoadError, "'model.layers.1'"),
    "block": ("fp8-blocks", {"weight_block_size": [128]}, LoadError, "weight_block_size"),
    "block of 0": ("fp8-blocks", {"weight_block_size": [0, 128]}, LoadError, "weight_block_size"),
    "other floats": ("fp8-blocks", {"fmt": "e5m2"}, UnsupportedError, "'fmt'"),
    "groups": ("ct-int4", {"config_groups": {}}, LoadError, "config_groups"),
    "6 bits": ("ct-int4", {"config_groups": {"a": {"targets": ["Linear"], "weights": {**ONE, "num_bits": 6}}}},
               UnsupportedError, "'num_bits'"),
    "strategy": ("ct-int4", {"config_groups": {"a": {"targets": ["Linear"], "weights": {**ONE, "strategy": "head"}}}},
                 UnsupportedError, "'strategy'"),
    "unknown of a group": ("ct-int4", {"config_groups": {"a": {"targets": ["Linear"], "weights": {**ONE, "twist": 1}}}},
                           UnsupportedError, "'twist'"),
    "rotated": ("ct-int4", {"transform_config": {"config_groups": {"R1": {}}}}, UnsupportedError, "transform_config"),
    "sparse": ("ct-int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, UnsupportedError, "sparsity_config"),
    "ignored": ("ct-int4", {"ignore": ["re:.*up_proj"]}, LoadError, "up_proj"),
    "no expression": ("ct-int4", {"ignore": ["re:("]}, LoadError, "missing"),
    # Python's re would take 2^31 steps and more for these.
    "slow": ("ct-int4", {"ignore": [r"re:(?:[a-z]+[.\d_]*)+\1"]}, LoadError, "group reference"),
    "slow but right": ("ct-int4", {"ignore": [r"re:(?:(?:[a-z]+[.\d_]*)+)+X", r"re:(?:(?:[a-z]+[.\d_]*)+)+j$"]}, LoadError,
                       "is quantized although"),
    "slow targets": ("ct-int4", {"config_groups": {"a": {"targets": [r"re:(\w+[.]?)+X", "re:("], "weights": ONE}}},
                     LoadError, "'targets' .*missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit_are_rejected(tmp_path: Path, name: str) -> None:
    case, change, words = TENSORS[name]
    write_quantized(tmp_path / "a", CASES[case], change=change)
    with pytest.raises((LoadError, UnsupportedError), match=words):
        convert(tmp_path / "a", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_change_the_answer_are_rejected_by_name(tmp_path: Path, name: str) -> None:
    case, fields, kind, words = FIELDS[name]
    write_quantized(tmp_path / "a", CASES[case], **fields)  # type: ignore[arg-type]
    with pytest.raises(kind, match=words):
        convert(tmp_path / "a", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_modules_may_be_excluded(tmp_path: Path) -> None:
    """Listed modules are not quantized, and others may have different settings."""
    case = CASES["ct-int4"]
    (group,) = case.config["config_groups"].values()  # type: ignore[attr-defined]
    groups = {"first": {**group, "targets": ["Linear"]}, "named": {**group, "targets": ["re:.*down_proj$"],
              "weights": {**ONE, "group_size": 64}}}  # fmt: skip

    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(UP)]:
            del tensors[name]
        tensors[f"{UP}.weight"] = "F32", np.ones((128, 64), np.float32)
        for i in range(2):
            scale = f"model.layers.{i}.mlp.down_proj.weight_scale"
            tensors[scale] = "BF16", tensors[scale][1][:, ::2].copy()

    write_quantized(tmp_path / "a", case, change=change, ignore=["lm_head", UP], config_groups=groups)
    convert(tmp_path / "a", tmp_path / "x.gguf")


def test_layers_that_store_transposed_matrices_are_rejected(tmp_path: Path) -> None:
    case = CASES["bnb-int8"]

    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in shapes_of("gpt2") if name.endswith("attn.c_attn.weight")]:
            shape = tensors[name][1].shape
            tensors[name] = "I8", np.ones(shape, np.int8)
            tensors[f"{name[:-7]}.SCB"] = "F32", np.ones(shape[0], np.float32)

    write_quantized(tmp_path / "a", case, "gpt2", sizes={}, change=change)
    with pytest.raises(UnsupportedError, match=r"attn.c_attn.weight'.*\[in, out\]"):
        convert(tmp_path / "a", tmp_path / "x.gguf")


@pytest.mark.parametrize("name", CASES)
def test_damage_causes_only_errors(tmp_path: Path, name: str) -> None:
    """Each tensor of a module is left out, shortened, flattened, or given another type or other bits."""
    case, rng = CASES[name], np.random.default_rng(7)
    parts, _ = case.encoded(rng, (64, 128))
    damages: list[Callable[[Tensor], Tensor | None]] = [
        lambda tensor: None,
        lambda tensor: (tensor[0], tensor[1].reshape(-1)[: tensor[1].size // 2]),
        lambda tensor: (tensor[0], tensor[1][..., None]),
        lambda tensor: ("U8", np.frombuffer(tensor[1].tobytes(), np.uint8).reshape(*tensor[1].shape, -1)),
        lambda tensor: (
            tensor[0],
            np.frombuffer(rng.bytes(tensor[1].nbytes), tensor[1].dtype).reshape(tensor[1].shape),
        ),
    ]
    (tmp_path / "a").mkdir()
    for part in parts:
        for damage in damages:
            damaged = {f"m.{other}": value for other, value in parts.items() if other != part}
            if (made := damage(parts[part])) is not None:
                damaged[f"m.{part}"] = made
            write_tensors(tmp_path / "a" / "model.safetensors", damaged)
            try:
                checkpoint = StoredCheckpoint(tmp_path / "a", Fields("quantization_config", case.config))
                for found in checkpoint.matrices.values():
                    for dtype in found.exact_types():
                        found.packed(dtype, 0, found.n_rows)
                    if found.n_rows * found.n_columns <= 1 << 16:
                        checkpoint.values(found.name)
            except (LoadError, UnsupportedError):
                continue


def test_a_truncated_file_is_rejected(tmp_path: Path) -> None:
    assert is_quantized(f"{UP}.weight")
    write_quantized(tmp_path / "a", CASES["gptq"])
    path = tmp_path / "a" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LoadError, match=r"194144.*194044"):
        convert(tmp_path / "a", tmp_path / "x.gguf")
