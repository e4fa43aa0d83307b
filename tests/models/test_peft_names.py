"""Matrices that a PEFT adapter changes.  Oracle: conversion of the checkpoint with ``W + B A``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quire._native.quant import dequantize
from quire.checkpoints.conversion import CheckpointReader, opened_adapters
from quire.checkpoints.conversion.low_rank import effect_of
from quire.errors import UnsupportedError
from quire.gguf import GGUFReader
from quire.safetensors import SafetensorsFile
from tiny_adapters import write_peft_adapter
from tiny_checkpoints import write_checkpoint, write_safetensors

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """Adapted ``modules`` of a layer; ``needs_folder``: a GGUF file lacks parts of the configuration that they need."""

    model: str
    layer: str
    modules: tuple[str, ...]
    needs_folder: bool = False


CASES = [
    Case("llama", "model.layers.1", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    Case("granite_swa", "model.layers.1", ("self_attn.q_proj", "self_attn.k_proj")),  # a function finds the KV heads
    Case("gptneox", "gpt_neox.layers.1", ("attention.query_key_value", "mlp.dense_4h_to_h")),
    Case("qwen35", "model.layers.1", ("linear_attn.in_proj_qkv", "linear_attn.out_proj")),  # columns in another order
    Case("refact", "transformer.h.1", ("attn.kv", "mlp.gate_up_proj")),
    Case("gpt2", "transformer.h.1", ("attn.c_attn",)),
    Case("granitehybrid_dense", "model.layers.1", ("shared_mlp.input_linear",), needs_folder=True),  # other names
    Case("falcon", "transformer.h.1", ("self_attention.query_key_value",), needs_folder=True),
    Case("falcon_h1", "model.layers.1", ("self_attn.k_proj", "mamba.in_proj"), needs_folder=True),  # times numbers
]


@contextmanager
def converted(folder: Path, scratch: Path) -> Iterator[CheckpointReader]:
    scratch.mkdir()
    with CheckpointReader(folder, scratch, "f32") as reader:
        yield reader


def values_of(reader: GGUFReader) -> dict[str, Array]:
    return {info.name: dequantize(reader.tensor(info.name)) for info in reader.tensors}


def products(adapter: Path, base: GGUFReader) -> dict[str, Array]:
    """Return the products that an adapter with alpha 6 and rank 2 adds."""
    with opened_adapters([(str(adapter), 1.0)], base) as (opened,):
        pairs = values_of(opened.reader)
    names = {name.rpartition(".lora_")[0] for name in pairs}
    return {name: 3 * pairs[f"{name}.lora_b"] @ pairs[f"{name}.lora_a"] for name in names}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_products_follow_the_conversion_of_the_matrix(tmp_path: Path, case: Case) -> None:
    write_checkpoint(tmp_path / "hf", case.model)
    stored, rng = SafetensorsFile(tmp_path / "hf" / "model.safetensors"), np.random.default_rng(4)
    weights = {name: np.array(dequantize(stored.tensor(name))).reshape(stored.shape(name)) for name in stored}
    turned, halves, changed = case.model == "gpt2", dict[str, Array](), dict(weights)
    for module in (f"{case.layer}.{module}" for module in case.modules):
        n_out, n_in = weights[f"{module}.weight"].shape[:: -1 if turned else 1]
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, n_in), (n_out, 2)))
        halves |= {f"{module}.lora_A": a, f"{module}.lora_B": b}
        changed[f"{module}.weight"] = weights[f"{module}.weight"] + 3 * ((b @ a).T if turned else b @ a)
    adapter = write_peft_adapter(tmp_path / "a", halves, {"r": 2, "lora_alpha": 6, "target_modules": "all-linear"})
    with converted(tmp_path / "hf", tmp_path / "s1") as base:
        before, file = values_of(base), GGUFReader(base.path)
        added = [products(adapter, base)]
        if case.needs_folder:
            with pytest.raises(UnsupportedError, match=r"^\[adapter\] .*(open the checkpoint folder|in the model$)"):
                products(adapter, file)
        else:
            added.append(products(adapter, file))
    write_safetensors(tmp_path / "hf" / "model.safetensors", changed)
    with converted(tmp_path / "hf", tmp_path / "s2") as reader:
        after = values_of(reader)
    for each in added:
        assert {name for name in before if not np.array_equal(before[name], after[name])} == set(each)
        for name, product in each.items():
            np.testing.assert_allclose(after[name] - before[name], product, atol=1e-5 * np.abs(product).max())


def test_changes_that_low_rank_products_cannot_follow() -> None:
    """Effects are recognized only if a change does nothing else."""
    rng = np.random.default_rng(0)
    order, columns, factors = rng.permutation(12), rng.permutation(6), rng.standard_normal(5).astype(np.float32)
    found = effect_of(lambda x, _: (x[order[:5]][:, columns]) * factors[:, None], (12, 6), None)  # type: ignore[arg-type]
    assert found is not None
    assert (found.rows.tolist(), found.columns.tolist(), found.turns) == (order[:5].tolist(), columns.tolist(), False)
    np.testing.assert_array_equal(found.factors, factors)
    turned = effect_of(lambda x, _: x.T[columns], (12, 6), None)  # type: ignore[arg-type]
    assert turned is not None
    assert (turned.columns.tolist(), turned.turns) == (columns.tolist(), True)
    for change in (
        lambda x, _: x + 1, lambda x, _: x * x, lambda x, _: x / np.linalg.norm(x, axis=1, keepdims=True),
        lambda x, _: x.reshape(2, 6, 6), lambda x, _: x.reshape(6, 12), lambda x, _: x[0], lambda x, _: 0 * x,
        lambda x, _: x * np.arange(1, 7, dtype=np.float32), lambda x, _: np.roll(x.ravel(), 1).reshape(x.shape),
        lambda x, _: x.reshape(5, -1),
    ):  # fmt: skip
        assert effect_of(change, (12, 6), None) is None  # type: ignore[arg-type]
