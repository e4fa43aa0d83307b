"""The packaged model equals the output of the project's tools for its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import quire
from quire._native.core import find_device
from quire._native.graph import Executor
from quire.checkpoints.conversion import convert
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.tokenizer import Tokenizer

PACKAGED = Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf"


def test_the_packaged_model_is_reproducible(shared: Path, tmp_path: Path) -> None:
    convert(shared / "models" / "tiny-chat", tmp_path / "x.gguf", "q8_0")
    assert (tmp_path / "x.gguf").read_bytes() == PACKAGED.read_bytes()


def test_8_bit_cache_keeps_perplexity(shared: Path) -> None:
    """Compare with the same model with a float32 cache, on chats that it was trained on."""
    text = (shared / "models" / "samples.txt").read_text(encoding="utf-8")
    chats = [chat.replace("\n--- greedy:\n", "") for chat in text.split("=== [chat]\n")[1:]]
    tokenizer, model = Tokenizer.from_gguf(PACKAGED), load_model(GGUFReader(PACKAGED))

    def losses(executor: Executor, tokens: list[int]) -> list[float]:
        found: list[float] = []
        for begin in range(0, len(tokens), 50):
            rows = list(range(begin, min(begin + 50, len(tokens))))
            logits = executor.run(
                [tokens[i] for i in rows], positions=rows, slots=[i + 32 for i in rows],
                logit_rows=list(range(len(rows))), row_begin=[0, len(rows)], n_kv=[rows[-1] + 1],
                tables=[list(range(1, 17))],
            ).astype(np.float64)  # fmt: skip
            top = logits.max(axis=1)
            totals = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
            found += [totals[i] - logits[i, tokens[row + 1]] for i, row in enumerate(rows) if row + 1 < len(tokens)]
        return found

    def perplexity(kv_dtype: Literal["f32", "bf16", "q8_0"]) -> float:
        executor = Executor(model.trace(), find_device("cpu"), n_blocks=17, threads=2, kv_dtype=kv_dtype, repack="no")
        encoded = [tokenizer.encode(chat, parse_special=True)[:500] for chat in chats if "===" not in chat]
        return float(np.exp(np.mean([loss for tokens in encoded for loss in losses(executor, tokens)])))

    exact = perplexity("f32")
    assert 1 < exact < 4
    assert abs(perplexity("q8_0") / exact - 1) < 0.005
    assert abs(perplexity("bf16") / exact - 1) < 0.001


def test_its_shape() -> None:
    reader = GGUFReader(PACKAGED)
    assert sum(info.size_bytes for info in reader.tensors) < 9_000_000
    n_parameters = 0
    for info in reader.tensors:
        size = 1
        for dim in info.shape:
            size *= dim
        n_parameters += size
    assert n_parameters == 7_345_408
    assert {str(info.dtype) for info in reader.tensors if len(info.shape) == 2} == {"q8_0"}


def test_packaged_model_advises_what_its_checkpoint_does() -> None:
    """The checkpoint advises greedy decoding."""
    with quire.LLM(threads=1, n_ctx=64) as model:
        assert model.advised_sampling == {"temperature": 0.0}


def test_unsupported_advice_is_rejected(tmp_path: Path) -> None:
    reader = quire.GGUFReader(PACKAGED)
    with quire.GGUFWriter(tmp_path / "x.gguf", "qwen3") as writer:
        for key in reader.metadata:
            if key not in ("general.architecture", "general.sampling.temp"):
                kind = reader.metadata.type_of(key)
                value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
                writer.set(key, value, kind)
        writer.set("general.sampling.temp", -1.0, "f32")
        for info in reader.tensors:
            writer.add_tensor(info.name, info.dtype, info.shape)
        for info in reader.tensors:
            writer.write(info.name, reader.tensor(info.name).numpy())
    with pytest.raises(quire.LoadError, match=r"general\.sampling .*temperature"):
        quire.LLM(tmp_path / "x.gguf")
