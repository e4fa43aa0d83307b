"""The packaged model is what the project's tools make of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
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


def test_packaged_model_advises_what_its_checkpoint_does() -> None:
    """Greedy: the checkpoint says not to sample."""
    with quire.LLM(threads=1, n_ctx=64) as model:
        assert model.advised_sampling == quire.SamplingParams(temperature=0.0)


def test_advice_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
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
