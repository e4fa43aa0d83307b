"""The packaged model is what the project's tools make of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import quire.convert
from quire.convert import convert
from quire.gguf import GGUFReader

PACKAGED = Path(quire.convert.__file__).parent.parent / "data" / "tiny-chat-q8_0.gguf"


def test_it_can_be_made_again(shared: Path, tmp_path: Path) -> None:
    convert(shared / "models" / "tiny-chat", tmp_path / "x.gguf", "q8_0")
    assert (tmp_path / "x.gguf").read_bytes() == PACKAGED.read_bytes()


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
