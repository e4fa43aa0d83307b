"""Models whose scores depend on the length of the context in ways that Quire does not compute: contexts are limited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quire import UnsupportedError, convert
from quire.gguf import GGUFReader
from quire.models import load_model
from tiny_checkpoints import write_checkpoint


def test_contexts_of_grok_end_where_its_scores_grow(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "grok", "grok")
    config = json.loads((path := tmp_path / "grok" / "config.json").read_text())
    path.write_text(json.dumps({**config, "attn_temperature_len": 64}))
    convert(tmp_path / "grok", out := tmp_path / "grok.gguf", "f32")
    model = load_model(GGUFReader(out))
    assert model.config.n_ctx_train == 64
    model.trace(64)
    with pytest.raises(UnsupportedError, match="64 tokens"):
        model.trace(65)
