"""Compare the encoders of support/quantized_checkpoints.py with the formats' own libraries.

Tests of missing libraries are skipped: pip install compressed-tensors bitsandbytes gptqmodel hqq
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quantized_checkpoints import CASES, Case, Tensor

torch: Any = pytest.importorskip("torch")
SHAPE = (64, 128)
VIEWS = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn"}


def tensor_of(stored: Tensor) -> Any:
    dtype, array = stored
    made = torch.from_numpy(np.array(array))
    return made.view(getattr(torch, VIEWS[dtype])) if dtype in VIEWS else made


def fp8(case: Case, parts: dict[str, Any]) -> Any:
    module = pytest.importorskip("transformers.integrations.finegrained_fp8")
    (scale,) = (parts[name] for name in ("weight_scale_inv", "weight_scale") if name in parts)
    weight = parts["weight"]
    if "weight_block_size" in case.config and (size := case.config["weight_block_size"]) and scale.ndim == 2:
        # The library needs whole blocks, so the last ones are padded.
        rows, columns = (-n % block for n, block in zip(weight.shape, size, strict=True))  # type: ignore[call-overload]
        weight = torch.nn.functional.pad(weight.view(torch.uint8), (0, columns, 0, rows)).view(torch.float8_e4m3fn)
    out = module.Fp8Dequantize(None)._dequantize_one(
        weight, scale.reshape(1, 1) if scale.numel() == 1 else scale, torch.float32
    )
    return out[: SHAPE[0], : SHAPE[1]]


def compressed_tensors(case: Case, parts: dict[str, Any]) -> Any:
    library = pytest.importorskip("compressed_tensors")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    assert library
    (group,) = case.config["config_groups"].values()  # type: ignore[attr-defined]
    weights = quantization.QuantizationArgs(
        **{key: value for key, value in group["weights"].items() if key != "actorder"}
    )
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    if "weight_g_idx" in parts:
        pytest.skip("the library no longer supports column order")
    compressor = compressors.BaseCompressor.get_value_from_registry(case.config["format"])
    return compressor.decompress(parts, scheme)["weight"]


def bitsandbytes(case: Case, parts: dict[str, Any]) -> Any:
    functional = pytest.importorskip("bitsandbytes.functional")
    if "SCB" in parts:
        return functional.int8_vectorwise_dequant(parts["weight"], parts["SCB"])
    stats = {name.removeprefix("weight."): value for name, value in parts.items() if name != "weight"}
    state = functional.QuantState.from_dict(stats, device=torch.device("cpu"))
    return functional.dequantize_4bit(parts["weight"], state)


def hqq(case: Case, parts: dict[str, Any]) -> Any:
    quantize = pytest.importorskip("hqq.core.quantize")
    text = {name: "".join(map(chr, parts[name])) for name in ("packing",)}
    meta = {name: int(parts[name]) for name in ("nbits", "group_size", "axis")}
    return quantize.Quantizer.dequantize(
        parts["W_q"],
        {**meta, **text, "shape": tuple(parts["shape"].tolist()), "scale": parts["scale"], "zero": parts["zero"],
         "view_as_float": False, "compute_dtype": parts["scale"].dtype},
    )  # fmt: skip


def gptq(case: Case, parts: dict[str, Any]) -> Any:
    qlinear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch")
    utils = pytest.importorskip("gptqmodel.utils.model")
    if parts["scales"].dtype is torch.bfloat16:
        pytest.skip("the library computes in F16")
    bits, group = case.config["bits"], case.config["group_size"]
    module = qlinear.TorchLinear(
        bits=bits, group_size=group, sym=False, desc_act=True, in_features=SHAPE[1], out_features=SHAPE[0], bias=False,
        register_buffers=True,
    )  # fmt: skip
    index = torch.arange(SHAPE[1], dtype=torch.int32) // (group if group > 0 else SHAPE[1])  # type: ignore[operator]
    for name, value in {"g_idx": index, **parts}.items():
        setattr(module, name, value)
    if case.config["checkpoint_format"] == "gptq":
        utils.convert_gptq_v1_to_v2_format_module(module, bits, torch.int32)
    module.post_init()
    return module.dequantize_weight().T


def awq(case: Case, parts: dict[str, Any]) -> Any:
    utils = pytest.importorskip("gptqmodel.quantization.awq.utils.packing_utils")
    return utils.dequantize_gemm(
        parts["qweight"], parts["qzeros"], parts["scales"], case.config["bits"], case.config["group_size"]
    ).T


LIBRARIES: dict[str, Callable[[Case, dict[str, Any]], Any]] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fp8,
    "fp8": fp8,
    "gptq": gptq,
    "hqq": hqq,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.python_only
def test_the_library_has_the_same_numbers(name: str) -> None:
    case = CASES[name]
    parts, expected = case.encoded(np.random.default_rng(3), SHAPE)
    theirs: npt.NDArray[np.float32] = (
        LIBRARIES[str(case.config["quant_method"])](case, {part: tensor_of(value) for part, value in parts.items()})
        .to(torch.float32)
        .numpy()
    )
    assert np.array_equal(theirs, expected)
