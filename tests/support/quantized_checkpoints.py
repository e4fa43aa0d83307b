"""Matrices quantized like other programs do, with the numbers they represent, from each format's documentation.

An encoder takes a random generator and a shape ``[rows, columns]``.  It returns the tensors of a module, by the ends of
their names, and the numbers to which the format's library dequantizes them, as float32.  It uses no code of Quire.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tiny_checkpoints import config_of, shapes_of, tokenizer_json, weight_of

Array = npt.NDArray[np.generic]
Rng = np.random.Generator
Tensor = tuple[str, Array]  # safetensors type and storage
Encoded = tuple[dict[str, Tensor], npt.NDArray[np.float32]]
Shape = tuple[int, int]
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32) / np.float32(12)


def bf16(x: Array) -> npt.NDArray[np.float32]:
    """Round to 8 significant bits, ties to even."""
    fraction, exponent = np.frexp(np.asarray(x, np.float32))
    return np.ldexp(np.rint(fraction * 256) / 256, exponent).astype(np.float32)


def in_type(x: Array, dtype: str) -> npt.NDArray[np.float32]:
    """Round to a safetensors type."""
    return {"F32": np.float32, "F16": np.float16, "BF16": bf16}[dtype](x).astype(np.float32)


def tensor(x: Array, dtype: str) -> Tensor:
    """Return the storage of numbers that the type represents exactly."""
    if dtype == "BF16":
        return dtype, (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return dtype, np.asarray(x, {"F32": np.float32, "F16": np.float16}[dtype])


def float8(code: int) -> float:
    """Decode an 8-bit float: sign, 4 bits of exponent with bias 7, 3 of fraction."""
    sign, exponent, fraction = code >> 7, code >> 3 & 15, code & 7
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


FLOAT8 = np.array([float8(code) for code in range(256)], np.float32)


def packed(codes: Array, bits: int, axis: int) -> npt.NDArray[np.int32]:
    """Pack codes along an axis into a stream of bits in 32-bit words, lowest bits first."""
    moved = np.moveaxis(np.asarray(codes, np.uint64), axis, -1)
    ones = (moved[..., None] >> np.arange(bits, dtype=np.uint64) & np.uint64(1)).astype(np.uint8)
    stream = ones.reshape(*moved.shape[:-1], -1)
    padded = np.concatenate([stream, np.zeros((*stream.shape[:-1], -stream.shape[-1] % 32), np.uint8)], -1)
    words = np.packbits(padded, axis=-1, bitorder="little").view("<i4")
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def scales_of(rng: Rng, shape: tuple[int, ...], largest: float, n_columns: int, dtype: str) -> npt.NDArray[np.float32]:
    """Return scales that make weights about as large as those of a model."""
    return in_type(rng.uniform(0.5, 1.5, shape) * 3 * n_columns**-0.5 / largest, dtype)


def gptq(
    rng: Rng, shape: Shape, *, bits: int = 4, group: int = 32, symmetric: bool = False, version: int = 1,
    act_order: bool = False, dtype: str = "F16", exact: bool = False, has_g_idx: bool = True,
) -> Encoded:  # fmt: skip
    n_rows, n_columns = shape
    group = n_columns if group == -1 else group
    n_groups, top = -(-n_columns // group), 1 << bits
    codes = rng.integers(0, top, (n_columns, n_rows))
    zeros = np.full((n_groups, n_rows), top // 2) if symmetric else rng.integers(0, top, (n_groups, n_rows))
    scales = scales_of(rng, (n_groups, n_rows), top / 2, n_columns, dtype)
    if exact:
        scales = np.exp2(np.floor(np.log2(scales)))
    index = np.arange(n_columns) // group
    if act_order:
        index = rng.permutation(index)
    words = packed(zeros, bits, 1).view(np.uint32)
    if version == 1 and bits != 3:
        words = words - np.uint32(sum(1 << at for at in range(0, 32, bits)))
    elif version == 1:
        words = packed((zeros - 1) % 8, 3, 1).view(np.uint32)
    out = {
        "qweight": ("I32", packed(codes, bits, 0)),
        "qzeros": ("I32", words.view(np.int32)),
        "scales": tensor(scales, dtype),
    }
    if has_g_idx:
        out["g_idx"] = "I32", index.astype(np.int32)
    numbers = (codes - zeros[index]).astype(np.float32) * scales[index]
    return out, in_type(numbers, dtype).T.copy()


def awq(rng: Rng, shape: Shape, *, bits: int = 4, group: int = 32, narrow: bool = False) -> Encoded:
    n_rows, n_columns = shape
    codes = rng.integers(0, 1 << bits, (n_columns, n_rows))
    zeros = rng.integers(0, 1 << bits, (n_columns // group, n_rows))
    if narrow:
        zeros[:] = 1 << (bits - 1)
    scales = scales_of(rng, zeros.shape, 1 << (bits - 1), n_columns, "F16")

    def words(x: Array) -> Array:
        if bits != 4:
            return packed(x, bits, 1)
        eights = x.reshape(len(x), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return packed(eights.reshape(x.shape), 4, 1)

    out = {"qweight": ("I32", words(codes)), "qzeros": ("I32", words(zeros)), "scales": tensor(scales, "F16")}
    by_column = np.arange(n_columns) // group
    numbers = (codes - zeros[by_column]).astype(np.float32) * scales[by_column]
    return out, in_type(numbers, "F16").T.copy()


def fp8(
    rng: Rng, shape: Shape, *, block: tuple[int, int] | None = None, per_row: bool = False, dtype: str = "F32",
    suffix: str = "weight_scale_inv", rounds: str = "F32", powers: bool = False, input_scale: str = "",
) -> Encoded:  # fmt: skip
    """Encode FP8.  ``rounds`` is the type that the library computes in."""
    n_rows, n_columns = shape
    codes = rng.integers(0, 126, shape) + 128 * rng.integers(0, 2, shape)
    if block is not None:
        grid = (-(-n_rows // block[0]), -(-n_columns // block[1]))
        row, column = np.arange(n_rows)[:, None] // block[0], np.arange(n_columns) // block[1]
    else:
        grid = (n_rows, 1) if per_row else (1, 1)
        row, column = np.arange(n_rows)[:, None] if per_row else np.zeros((1, 1), int), np.zeros(1, int)
    scales = scales_of(rng, grid, 448, n_columns, dtype)
    stored = tensor(scales if block or per_row else scales[0], dtype)
    if powers:
        exponents = np.floor(np.log2(scales)).astype(int) + 127
        scales = np.exp2(exponents - 127).astype(np.float32)
        stored = "U8", exponents.astype(np.uint8)
    out = {"weight": ("F8_E4M3", codes.astype(np.uint8)), suffix: stored}
    if input_scale:
        out[input_scale] = "F32", np.full(1, 0.25, np.float32)
    return out, in_type(FLOAT8[codes] * scales[row, column], rounds)


def pack_quantized(
    rng: Rng, shape: Shape, *, bits: int = 4, group: int = 32, symmetric: bool = True, act_order: bool = False
) -> Encoded:
    n_rows, n_columns = shape
    group, half = n_columns if group == -1 else group, 1 << (bits - 1)
    n_groups = n_columns // group
    codes = rng.integers(-half, half, shape)
    zeros = np.zeros((n_rows, n_groups), int) if symmetric else rng.integers(-half, half, (n_rows, n_groups))
    scales = scales_of(rng, zeros.shape, half, n_columns, "BF16")
    index = np.arange(n_columns) // group
    index = rng.permutation(index) if act_order else index
    out = {
        "weight_packed": ("I32", packed(codes + half, bits, 1)),
        "weight_shape": ("I64", np.array(shape, np.int64)),
        "weight_scale": tensor(scales, "BF16"),
    }
    if not symmetric:
        out["weight_zero_point"] = "I32", packed(zeros + half, bits, 0)
    if act_order:
        out["weight_g_idx"] = "I32", index.astype(np.int32)
    return out, bf16((codes - zeros[:, index]).astype(np.float32) * scales[:, index])


def int_quantized(rng: Rng, shape: Shape, *, symmetric: bool = True, one: bool = False, dtype: str = "F16") -> Encoded:
    n_rows, n_columns = shape
    codes, grid = rng.integers(-128, 128, shape), (1, 1) if one else (n_rows, 1)
    zeros = np.zeros(grid, int) if symmetric else rng.integers(-20, 20, grid)
    scales = scales_of(rng, grid, 128, n_columns, dtype)
    out = {"weight": ("I8", codes.astype(np.int8)), "weight_scale": tensor(scales[0] if one else scales, dtype)}
    if not symmetric:
        out["weight_zero_point"] = "I8", (zeros[0] if one else zeros).astype(np.int8)
    return out, in_type((codes - zeros).astype(np.float32) * scales, dtype)


def nvfp4(rng: Rng, shape: Shape, *, divisor: float = 512.0) -> Encoded:
    n_rows, n_columns = shape
    codes = rng.integers(0, 16, shape)
    scales = rng.integers(40, 70, (n_rows, n_columns // 16))
    total = divisor * n_columns**0.5 / 8
    out = {
        "weight_packed": ("U8", (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        "weight_scale": ("F8_E4M3", scales.astype(np.uint8)),
        "weight_global_scale": ("F32", np.array([total], np.float32)),
        "input_global_scale": ("F32", np.array([3.0], np.float32)),
    }
    by_group = (FLOAT8[scales] / np.float32(total)).astype(np.float32)
    return out, bf16(FLOAT4[codes] * np.repeat(by_group, 16, axis=1))


def mxfp4(rng: Rng, shape: Shape) -> Encoded:
    codes, exponents = rng.integers(0, 16, shape), rng.integers(122, 125, (shape[0], shape[1] // 32))
    out = {
        "weight_packed": ("U8", (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        "weight_scale": ("U8", exponents.astype(np.uint8)),
    }
    return out, bf16(FLOAT4[codes] * np.repeat(np.exp2(exponents - 127.0), 32, axis=1))


def bnb4(
    rng: Rng, shape: Shape, *, kind: str = "nf4", block: int = 64, nested: bool = False, dtype: str = "BF16"
) -> Encoded:
    n, table = shape[0] * shape[1], {"nf4": NF4, "fp4": FP4}[kind]
    codes, n_blocks = rng.integers(0, 16, n), -(-n // block)
    largest = scales_of(rng, (n_blocks,), 1, shape[1], "F32")
    name = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[dtype]
    state: dict[str, object] = {"quant_type": kind, "blocksize": block, "dtype": name, "shape": list(shape)}
    out: dict[str, Tensor] = {
        "weight": ("U8", (codes[0::2] << 4 | codes[1::2]).astype(np.uint8)[:, None]),
        "weight.quant_map": ("F32", table),
        "weight.absmax": ("F32", largest),
    }
    if nested:
        values = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        of_blocks, offset = rng.integers(0, 256, n_blocks), float(np.float32(0.25))
        outer = rng.uniform(0.02, 0.05, -(-n_blocks // 256)).astype(np.float32)
        largest = values[of_blocks] * outer[np.arange(n_blocks) // 256] + np.float32(offset)
        out |= {
            "weight.absmax": ("U8", of_blocks.astype(np.uint8)),
            "weight.nested_absmax": ("F32", outer),
            "weight.nested_quant_map": ("F32", values),
        }
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    out[f"weight.quant_state.bitsandbytes__{kind}"] = "U8", text
    return out, in_type((table[codes] * largest[np.arange(n) // block]).reshape(shape), dtype)


def bnb8(rng: Rng, shape: Shape) -> Encoded:
    codes, largest = rng.integers(-127, 128, shape), scales_of(rng, (shape[0],), 1, shape[1], "F32")
    out = {
        "weight": ("I8", codes.astype(np.int8)),
        "SCB": ("F32", largest),
        "weight_format": ("U8", np.zeros((), np.uint8)),
    }
    return out, codes.astype(np.float32) * largest[:, None] * np.float32(7.874015718698502e-3)


def hqq(rng: Rng, shape: Shape, *, bits: int = 4, group: int = 64, axis: int = 1, dtype: str = "F16") -> Encoded:
    n = shape[0] * shape[1]
    grid = (n // group, group) if axis == 1 else (group, n // group)
    of_groups = (grid[0], 1) if axis == 1 else (1, grid[1])
    codes = rng.integers(0, 1 << bits, grid)
    zeros = in_type(rng.uniform(0.3, 0.7, of_groups) * (1 << bits), dtype)
    scales = scales_of(rng, of_groups, 1 << (bits - 1), shape[1], dtype)
    per_byte, step = 8 // bits, grid[0] * bits // 8
    byte = sum(codes[i * step : (i + 1) * step] << bits * (per_byte - 1 - i) for i in range(per_byte))
    out: dict[str, Tensor] = {
        "W_q": ("U8", np.asarray(byte).astype(np.uint8)),
        "scale": tensor(scales, dtype),
        "zero": tensor(zeros, dtype),
        "shape": ("I64", np.array(shape, np.int64)),
    }
    for name, number in {"nbits": bits, "group_size": group, "axis": axis}.items():
        out[name] = "I32", np.array(number, np.int32)
    flags = {"view_as_float": 0, "offload_meta": 0, "encoded_state_dict": 1, "stores_quant_config": 1, "channel_wise":
    1,
             "optimize": 1, "round_zero": 0}  # fmt: skip
    out |= {name: ("U8", np.array(value, np.uint8)) for name, value in flags.items()}
    for name, text in {"packing": f"{bits}bit_u8", "unpack_view_dtype": "torch.uint8"}.items():
        out[name] = "U8", np.frombuffer(text.encode(), np.uint8)
    return out, in_type(in_type(codes - zeros, dtype) * scales, dtype).reshape(shape)


@dataclass(frozen=True)
class Case:
    """A way to quantize.

    ``config`` is ``quantization_config``; ``kept`` is the GGUF type that represents it, if any.
    """

    encode: Callable[[Rng, Shape], Encoded]
    config: Mapping[str, object]
    library_dtype: str = "F16"
    kept: str = ""
    options: Mapping[str, object] = field(default_factory=dict)

    def encoded(self, rng: Rng, shape: Shape) -> Encoded:
        return self.encode(rng, shape, **self.options)  # type: ignore[call-arg]


def gptq_config(bits: int = 4, group: int = 32, **more: object) -> dict[str, object]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True,
            "damp_percent": 0.01, "checkpoint_format": "gptq", "meta": {"quantizer": ["x:1"]}, **more}  # fmt: skip


def ct_config(form: str, **weights: object) -> dict[str, object]:
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    group = {"targets": ["Linear"], "weights": {"observer": "minmax", **weights}, "input_activations": activations,
             "output_activations": None, "format": form}  # fmt: skip
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore":
    ["lm_head"],
            "quantization_status": "compressed", "kv_cache_scheme": None, "global_compression_ratio": None,
            "sparsity_config": {}, "transform_config": {}, "version": "0.12"}  # fmt: skip


FP8_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
             "modules_to_not_convert": ["lm_head"]}  # fmt: skip
BNB = {"quant_method": "bitsandbytes", "_load_in_4bit": True, "load_in_4bit": True, "load_in_8bit": False,
       "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False, "bnb_4bit_compute_dtype": "bfloat16",
       "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": None, "llm_int8_threshold": 6.0}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
       "modules_to_not_convert": None}  # fmt: skip
HQQ = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}, "skip_modules": ["lm_head"]}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}

CASES: dict[str, Case] = {
    "gptq": Case(gptq, gptq_config(), kept="q4_0", options={"symmetric": True}),
    "gptq-v2": Case(gptq, gptq_config(checkpoint_format="gptq_v2"), kept="q4_0",
                    options={"symmetric": True, "version": 2, "has_g_idx": False}),
    "gptq-zeros": Case(gptq, gptq_config(sym=False), kept="q5_0"),
    "gptq-zeros-exact": Case(gptq, gptq_config(sym=False), kept="q4_1", options={"exact": True}),
    "gptq-act-order": Case(gptq, gptq_config(desc_act=True), options={"symmetric": True, "act_order": True}),
    "gptq-8": Case(gptq, gptq_config(8, -1), kept="q8_0", options={"bits": 8, "group": -1, "symmetric": True}),
    "gptq-8-zeros": Case(gptq, gptq_config(8, 64), options={"bits": 8, "group": 64}),
    "gptq-3": Case(gptq, gptq_config(3), kept="q4_0", options={"bits": 3}),
    "gptq-2": Case(gptq, gptq_config(2), kept="q4_0", options={"bits": 2}),
    "gptq-16": Case(gptq, gptq_config(4, 16), options={"group": 16}),
    "gptq-bf16": Case(gptq, gptq_config(), "BF16", "q4_0", {"symmetric": True, "dtype": "BF16"}),
    "awq": Case(awq, AWQ, kept="q5_0"),
    "awq-8": Case(awq, {**AWQ, "bits": 8}, kept="q8_0", options={"bits": 8, "narrow": True}),
    "fp8-blocks": Case(fp8, FP8_BLOCK, "F32", options={"block": (128, 128)}),
    "fp8-blocks-powers": Case(fp8, {**FP8_BLOCK, "scale_fmt": "ue8m0", "weight_block_size": [32, 48]}, "F32",
                              options={"block": (32, 48), "powers": True}),
    "fp8-one": Case(fp8, {"quant_method": "fp8", "activation_scheme": "static"}, "F32",
                    options={"suffix": "weight_scale", "input_scale": "input_scale"}),
    "fp8-rows": Case(fp8, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert":
    ["lm_head"]},
                     "F32", options={"suffix": "weight_scale", "per_row": True, "input_scale": "input_scale_ub"}),
    "ct-int4": Case(pack_quantized, ct_config("pack-quantized", **INT4), "BF16", "q4_0"),
    "ct-int4-zeros": Case(pack_quantized, ct_config("pack-quantized", **INT4, symmetric=False), "BF16", "q5_0",
                          {"symmetric": False}),
    "ct-int4-act-order": Case(pack_quantized, ct_config("pack-quantized", **INT4, actorder="group"), "BF16",
                              options={"act_order": True}),
    "ct-int2": Case(pack_quantized, ct_config("pack-quantized", **{**INT4, "num_bits": 2}), "BF16", "q4_0", {"bits":
    2}), "ct-int4-channel": Case(pack_quantized, ct_config("pack-quantized", num_bits=4, strategy="channel"), "BF16",
    "q4_0",
                            {"group": -1}),
    "ct-int8-packed": Case(pack_quantized, ct_config("pack-quantized", num_bits=8, strategy="channel"), "BF16", "q8_0",
                           {"bits": 8, "group": -1}),
    "ct-int8": Case(int_quantized, ct_config("int-quantized", num_bits=8, strategy="channel"), kept="q8_0"),
    "ct-int8-zeros": Case(int_quantized, ct_config("int-quantized", num_bits=8, strategy="channel", symmetric=False),
                          options={"symmetric": False}),
    "ct-int8-one": Case(int_quantized, ct_config("int-quantized", num_bits=8, strategy="tensor"), kept="q8_0",
                        options={"one": True}),
    "ct-fp8-rows": Case(fp8, ct_config("float-quantized", num_bits=8, type="float", strategy="channel"), "BF16",
                        options={"per_row": True, "suffix": "weight_scale", "dtype": "BF16", "rounds": "BF16"}),
    "ct-fp8-one": Case(fp8, ct_config("float-quantized", num_bits=8, type="float", strategy="tensor"), "BF16",
                       options={"suffix": "weight_scale", "dtype": "BF16", "rounds": "BF16", "input_scale":
                       "input_scale"}),
    "ct-fp8-blocks": Case(fp8, ct_config("float-quantized", num_bits=8, type="float", strategy="block",
    block_structure=[128, 128]),
                          "F32", options={"block": (128, 128), "suffix": "weight_scale"}),
    "ct-nvfp4": Case(nvfp4, ct_config("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group",
    group_size=16),
                     "BF16", "nvfp4"),
    "ct-mxfp4": Case(mxfp4, ct_config("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group",
    group_size=32), "BF16",
                     "mxfp4"),
    "bnb-nf4": Case(bnb4, BNB, "BF16"),
    "bnb-nf4-nested": Case(bnb4, {**BNB, "bnb_4bit_use_double_quant": True}, "F16", options={"nested": True, "dtype":
    "F16"}), "bnb-fp4": Case(bnb4, {**BNB, "bnb_4bit_quant_type": "fp4"}, "F32", options={"kind": "fp4", "dtype":
    "F32"}), "bnb-int8": Case(bnb8, {**BNB, "load_in_4bit": False, "load_in_8bit": True}, "F32"), "hqq": Case(hqq, HQQ),
    "hqq-columns": Case(hqq, HQQ, "BF16", options={"axis": 0, "dtype": "BF16"}), "hqq-2": Case(hqq, HQQ,
    options={"bits": 2, "group": 32}), "hqq-1": Case(hqq, HQQ, options={"bits": 1, "group": 32}), "hqq-8": Case(hqq,
    HQQ, options={"bits": 8}),
}  # fmt: skip


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file."""
    header, offset = {}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(values).tobytes() for _, values in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def is_quantized(name: str) -> bool:
    return name.endswith("_proj.weight")


def write_quantized(
    folder: Path, case: Case, model: str = "llama", *, dtype: str = "bfloat16", sizes: Mapping[int, int] | None = None,
    plain: bool = False, change: Callable[[dict[str, Tensor]], None] | None = None, **config: object,
) -> dict[str, npt.NDArray[np.float32]]:  # fmt: skip
    """Write a quantized tiny model; return its numbers.

    ``plain`` writes the same numbers in F32, without quantization.  ``sizes`` maps widths of the model to others.
    ``change`` is applied to the tensors before they are written.
    """
    sizes = {96: 128} if sizes is None else sizes
    fields = {
        name: sizes.get(value, value) if isinstance(value, int) else value for name, value in config_of(model).items()
    }
    fields["torch_dtype"] = "float32" if plain else dtype
    if not plain:
        fields["quantization_config"] = {**case.config, **config}
    rng = np.random.default_rng(29)
    tensors: dict[str, Tensor] = {}
    numbers = {}
    for name, stored in shapes_of(model).items():
        shape = tuple(sizes.get(n, n) for n in stored)
        if not is_quantized(name):
            numbers[name] = weight_of(model, name, shape)
            tensors[name] = "F32", numbers[name]
            continue
        assert len(shape) == 2
        parts, numbers[name] = case.encoded(rng, shape)
        if plain:
            tensors[name] = "F32", numbers[name]
        else:
            module = name.removesuffix("weight")
            tensors |= {module + part: value for part, value in parts.items()}
    if change is not None:
        change(tensors)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    write_tensors(folder / "model.safetensors", tensors)
    return numbers
