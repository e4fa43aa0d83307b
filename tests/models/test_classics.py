"""Models older than Llama: rejected options and conversions that test_models.py does not cover."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from quire.checkpoints.reading import Fields
from quire.errors import CapacityError
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.models.baichuan import normed_head
from tiny_checkpoints import write_checkpoint


def test_a_context_longer_than_the_position_table_is_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "gpt2")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    model = load_model(GGUFReader(tmp_path / "x.gguf"))
    model.trace(96)
    with pytest.raises(CapacityError, match=r"\[gpt2\] n_ctx 97 .* 96"):
        model.trace(97)


def test_the_rows_of_baichuan_2s_head_have_length_1() -> None:
    head = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
    found = normed_head(head, Fields("config.json", {"vocab_size": 125696}))
    np.testing.assert_allclose(found, head / np.sqrt((head**2).sum(1))[:, None], rtol=1e-6)
    assert normed_head(head, Fields("config.json", {"vocab_size": 64000})) is head
