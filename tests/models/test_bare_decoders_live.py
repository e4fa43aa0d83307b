"""Folders of decoders without a head, as most embedding models are published.  Needs torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quire import LLM
from tiny_checkpoints import tokenizer_json

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

SIZES = {
    "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 258, "bos_token_id": 256,
    "eos_token_id": 257, "initializer_range": 0.3,
}  # fmt: skip
TEXT = "a fox and a dog"


@pytest.mark.parametrize("pooling", ["lasttoken", "mean_tokens", "cls_token"])
@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_vectors_equal_those_of_transformers(tmp_path: Path, kind: str, pooling: str) -> None:
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    model = getattr(transformers, f"{kind}Model")(config).float().eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [f"{kind}Model"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    types = ("Transformer", "Pooling")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(types)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    with LLM(tmp_path, threads=1, kv_dtype="f32") as quire:
        ids = quire.tokenizer.encode(TEXT, add_special=True)
        found = quire.embed(TEXT)[0]
    with torch.no_grad():
        rows = model(torch.tensor([ids])).last_hidden_state[0].numpy()
    expected = {"lasttoken": rows[-1], "mean_tokens": rows.mean(0), "cls_token": rows[0]}[pooling]
    assert np.abs(found - expected / np.linalg.norm(expected)).max() < 1e-4
