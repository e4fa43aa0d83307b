"""Files as llama.cpp's converter writes them where it adds keys or dimensions: they open and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from quire.gguf import GGUFReader, GGUFWriter
from test_configuration_fuzz import IDS, edited
from test_models import Runner
from tiny_checkpoints import write_checkpoint

pytestmark = pytest.mark.python_only

KEYS: dict[str, dict[str, tuple[object, str] | None]] = {
    # From "qk_rope_head_dim": 0; llama.cpp rotates whole heads.
    "deepseek2-ocr": {"rope.dimension_count": (0, "u32"), "attention.sliding_window": (128, "u32")},
    "olmo3": {"rope.freq_base_swa": (500000.0, "f32")},
    "granitehybrid_attention": {
        "expert_count": (0, "u32"),
        "expert_used_count": (0, "u32"),
        "expert_shared_feed_forward_length": (52, "u32"),
        "ssm.conv_kernel": (4, "u32"),
        "ssm.state_size": (12, "u32"),
    },
}


def converted(folder: Path, name: str) -> Path:
    write_checkpoint(folder / "hf", name)
    convert(folder / "hf", folder / "x.gguf", "f32")
    return folder / "x.gguf"


@pytest.mark.parametrize("name", KEYS)
def test_more_keys_change_nothing(tmp_path: Path, name: str) -> None:
    path = converted(tmp_path, name)
    other = edited(path, tmp_path / "other.gguf", KEYS[name])
    assert np.array_equal(Runner(other).logits(IDS), Runner(path).logits(IDS))


def test_windows_have_a_base_of_their_own(tmp_path: Path) -> None:
    path = converted(tmp_path, "olmo3")
    other = edited(path, tmp_path / "other.gguf", {"rope.freq_base_swa": (700.0, "f32")})
    assert not np.allclose(Runner(other).logits(IDS), Runner(path).logits(IDS), rtol=1e-3)


def test_a_dimension_of_size_one_in_front_does_not_count(tmp_path: Path) -> None:
    """ERNIE 4.5's checkpoints have one in the experts' biases, which llama.cpp's converter keeps."""
    path = converted(tmp_path, "ernie4_5-moe")
    reader, n = GGUFReader(path), 0
    with GGUFWriter(tmp_path / "other.gguf", "ernie4_5-moe") as writer:
        writer.copy_metadata(reader.metadata)
        for info in reader.tensors:
            is_bias = info.name.endswith("exp_probs_b.bias")
            n += is_bias
            writer.add_tensor(info.name, info.dtype, (1, *info.shape) if is_bias else info.shape)
        for info in reader.tensors:
            values = reader.tensor(info.name).numpy()
            writer.write(info.name, values.reshape(1, -1) if info.name.endswith("exp_probs_b.bias") else values)
    assert n > 0
    assert np.array_equal(Runner(tmp_path / "other.gguf").logits(IDS), Runner(path).logits(IDS))


NAMES = {
    "glm5-next": {"blk.1.indexer_compressor_gate.weight", "blk.1.indexer_compressor_ape.weight"},
}


@pytest.mark.parametrize("name", NAMES)
def test_tensors_have_the_names_of_llama_cpp(tmp_path: Path, name: str) -> None:
    assert NAMES[name] <= {info.name for info in GGUFReader(converted(tmp_path, name)).tensors}
