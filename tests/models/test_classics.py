"""What models with a table of positions refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from quire.convert import convert
from quire.errors import CapacityError
from quire.gguf import GGUFReader
from quire.models import load_model
from tiny_checkpoints import write_checkpoint


def test_a_context_longer_than_the_table_of_positions_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "gpt2")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    model = load_model(GGUFReader(tmp_path / "x.gguf"))
    model.trace(96)
    with pytest.raises(CapacityError, match=r"\[gpt2\] n_ctx must be at most 96, .* but is 97"):
        model.trace(97)
