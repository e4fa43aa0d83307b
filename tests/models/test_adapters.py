"""LoRA adapters against transformers with ``W + factor * B A`` for each matrix.  Runs where torch is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quire._native import graph
from quire._native.core import find_device
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.gguf import GGUFReader, GGUFWriter
from quire.models import load_model
from quire.nn import Adapter
from tiny_adapters import write_gguf_adapter
from tiny_checkpoints import write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
pytest.importorskip("transformers", reason="needs transformers")

from oracle_models import oracle_of  # noqa: E402

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

Array = npt.NDArray[np.float32]
IDS = np.random.default_rng(5).integers(0, 256, 30).tolist()


def interleaved(n_head: int) -> Callable[[Array], Array]:
    """Interleave the halves of each head's rows, as in GGUF files of Llama."""
    return lambda b: b.reshape(n_head, 2, -1, b.shape[1]).swapaxes(1, 2).reshape(b.shape)


@dataclass(frozen=True)
class Case:
    """Maps GGUF names of matrices to transformers' names in the layer, and to a change of the rows of B."""

    model: str
    matrices: dict[str, tuple[str, Callable[[Array], Array]]]


def same(b: Array) -> Array:
    return b


CASES = [
    Case("llama", {
        "attn_q": ("self_attn.q_proj", interleaved(4)), "attn_k": ("self_attn.k_proj", interleaved(2)),
        "ffn_down": ("mlp.down_proj", same),
    }),
    Case("qwen2", {
        "attn_q": ("self_attn.q_proj", same), "attn_v": ("self_attn.v_proj", same),
        "attn_output": ("self_attn.o_proj", same), "ffn_gate": ("mlp.gate_proj", same),
    }),
    Case("phi3", {"attn_qkv": ("self_attn.qkv_proj", same), "ffn_up": ("mlp.gate_up_proj", same)}),
]  # fmt: skip


def logits(source: Path | GGUFReader, adapters: list[Adapter], kernels: str) -> Array:
    reader = source if isinstance(source, GGUFReader) else GGUFReader(source)
    model, n = load_model(reader, adapters=adapters), len(IDS)
    executor = graph.Executor(
        model.trace(64), find_device("cpu"), n_blocks=9, threads=1, kv_dtype="f32", kernels=kernels, max_rows=64,
        max_sequences=1,
    )  # type: ignore[arg-type]  # fmt: skip
    rows = list(range(n))
    return executor.run(
        IDS, positions=rows, slots=[32 + row for row in rows], logit_rows=rows, row_begin=[0, n], n_kv=[n],
        tables=[list(range(1, 9))], states=[],
    )  # fmt: skip


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_adapters_equal_merged_weights(tmp_path: Path, case: Case, kernels: str) -> None:
    """Two adapters add up: one of rank 3 with alpha at half strength, and one of rank 8 without alpha."""
    write_checkpoint(tmp_path / "hf", case.model)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    oracle, rng = oracle_of(case.model), np.random.default_rng(1)
    plain = oracle.answer(IDS).numpy()
    adapters = []
    for i, (rank, alpha, scale, factor) in enumerate([(3, 6.0, 0.5, 0.5 * 6 / 3), (8, None, 0.25, 0.25)]):
        tensors = {}
        for layer, block in enumerate(oracle.model.model.layers):
            for name, (hf, rows_of) in case.matrices.items():
                weight = block.get_submodule(hf).weight
                a, b = (
                    (0.3 * rng.standard_normal(shape)).astype(np.float32)
                    for shape in ((rank, weight.shape[1]), (weight.shape[0], rank))
                )
                with torch.no_grad():
                    weight += factor * torch.from_numpy(b @ a)
                tensors |= {f"blk.{layer}.{name}.weight.lora_a": a, f"blk.{layer}.{name}.weight.lora_b": rows_of(b)}
        keys = {"general.architecture": case.model, "adapter.lora.alpha": alpha}
        adapters.append(Adapter(GGUFReader(write_gguf_adapter(tmp_path / f"{i}.gguf", tensors, keys)), scale))
    expected = oracle.answer(IDS).numpy()
    largest = np.abs(expected).max()
    assert np.abs(expected - plain).max() > 0.1 * largest  # the adapters matter
    assert np.abs(logits(tmp_path / "x.gguf", adapters, kernels) - expected).max() <= 1e-3 * largest
    assert np.abs(logits(tmp_path / "x.gguf", [], kernels) - plain).max() <= 1e-3 * np.abs(plain).max()


def pair(name: str, n_in: int = 64, n_out: int = 64, ranks: tuple[int, int] = (2, 2)) -> dict[str, Array]:
    a, b = np.ones((ranks[0], n_in), np.float32), np.ones((n_out, ranks[1]), np.float32)
    return {f"{name}.lora_a": a, f"{name}.lora_b": b}


Q = "blk.0.attn_q.weight"
REFUSED = {
    "kind": (pair(Q), {"general.type": "model"}, LoadError, "general.type is 'model'"),
    "no kind": (pair(Q), {"adapter.type": None}, LoadError, "adapter.type is 'missing'"),
    "architecture": (pair(Q), {"general.architecture": "qwen2"}, LoadError, "general.architecture is 'qwen2'"),
    "key": (pair(Q), {"adapter.lora.prompt_prefix": "x"}, UnsupportedError, "'adapter.lora.prompt_prefix'"),
    "invocation": (pair(Q), {"adapter.alora.invocation_tokens": "x"}, LoadError, "invocation_tokens is 'x'"),
    "empty": ({}, {}, LoadError, "no tensors"),
    "half": ({f"{Q}.lora_b": np.ones((64, 2), np.float32)}, {}, LoadError, f"'{Q}.lora_a' is missing"),
    "shape": (pair(Q, n_in=32), {}, LoadError, r"have shapes \[2, 32\]"),
    "ranks": (pair(Q, ranks=(2, 3)), {}, LoadError, r"have shapes \[2, 64\] and \[64, 3\]"),
    "norm": ({"blk.0.attn_norm.weight": np.ones(64, np.float32)}, {}, UnsupportedError, "'blk.0.attn_norm.weight'"),
    "embedding": (pair("token_embd.weight", 64, 272), {}, UnsupportedError, "embeddings"),
    "layer": (pair("blk.9.attn_q.weight") | pair(Q), {}, UnsupportedError, r"\(1\): blk.9.attn_q.weight"),
}  # fmt: skip


def test_adapters_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    reader = GGUFReader(tmp_path / "x.gguf")
    for what, (tensors, keys, kind, words) in REFUSED.items():
        adapter = GGUFReader(write_gguf_adapter(tmp_path / f"{what}.gguf", tensors, keys))  # type: ignore[arg-type]
        with pytest.raises(kind, match=rf"^\[adapter\] .*{words}"):
            load_model(reader, adapters=[Adapter(adapter)])
    for i, (tokens, dtype) in enumerate(((["a"], "string[]"), ([float("nan")], "f32[]"), ([2**63], "u64[]"))):
        with GGUFWriter(tmp_path / f"tokens{i}.gguf", "llama") as writer:
            for key, value in (("general.type", "adapter"), ("adapter.type", "lora")):
                writer.set(key, value)
            writer.set("adapter.alora.invocation_tokens", tokens, dtype)
        with pytest.raises(LoadError, match="invocation_tokens is"):
            load_model(reader, adapters=[Adapter(GGUFReader(tmp_path / f"tokens{i}.gguf"))])
    good = GGUFReader(write_gguf_adapter(tmp_path / "good.gguf", pair(Q)))
    load_model(reader, adapters=[Adapter(good)])
    with pytest.raises(LoadError, match=r"^\[adapter\] scale inf"):
        load_model(reader, adapters=[Adapter(good, float("inf"))])


def test_models_open_with_adapters(tmp_path: Path) -> None:
    """A folder with merged weights answers like the plain one with the adapter; scales multiply."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle, rng = oracle_of("llama"), np.random.default_rng(2)
    weight = oracle.model.model.layers[0].mlp.down_proj.weight
    name, plain = "blk.0.ffn_down.weight", oracle.answer(IDS).numpy()
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, weight.shape[1]), (weight.shape[0], 2)))
    with torch.no_grad():
        weight += 1.5 * torch.from_numpy(b @ a)  # 6 / 2 at half its strength
    expected = oracle.answer(IDS).numpy()
    path = write_gguf_adapter(tmp_path / "a.gguf", {f"{name}.lora_a": a, f"{name}.lora_b": b})
    options = {"threads": 1, "n_ctx": 96, "kv_dtype": "f32"}
    for adapters, logits in (([(path, 0.5)], expected), ([path, (path, -0.5)], expected), ([path, (path, -1)], plain)):
        with LLM(tmp_path / "hf", adapters=adapters, **options) as model:
            assert np.abs(model.logits(IDS) - logits).max() <= 1e-3 * np.abs(logits).max()
    for adapters in ([(path, float("nan"))], [(path, "1")], [(path, 1, 2)]):
        with pytest.raises(RequestError, match=r"^\[engine\] adapters "):
            LLM(tmp_path / "hf", adapters=adapters, **options)
    with LLM(tmp_path / "hf", adapters=[(path, 0.5)], packed_cache=tmp_path / "cache", **options) as model:
        assert np.abs(model.logits(IDS) - expected).max() <= 1e-3 * np.abs(expected).max()
