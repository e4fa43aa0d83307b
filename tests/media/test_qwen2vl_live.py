"""Encoders of Qwen2-VL and Qwen2.5-VL: files of llama.cpp's converters, and checkpoints that cannot be converted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from image_processor_cases import picture
from quire._native.core import find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.errors import LoadError, UnsupportedError
from quire.files.gguf import GGUFReader, GGUFWriter
from quire.models.media import load_media
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = {"qwen2vl": "qwen2vl_merger", "qwen25vl": "qwen2.5vl_merger"}


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    found, folder = family(request.param), tmp_path_factory.mktemp(request.param)
    found.save(found.make(), folder)
    convert_projector(folder, folder / "mmproj.gguf", "f32")
    return request.param, folder


def rewritten(source: Path, target: Path, changes: Mapping[str, tuple[object, str] | None], *, swaps: bool) -> Path:
    """Copy a file with other keys; ``swaps`` exchanges the names of the MLP's up and down matrices."""
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"} if swaps else {}
    reader = GGUFReader(source)
    names = {info.name: info.name for info in reader.tensors}
    for name in names:
        for one, two in other.items():
            if f".{one}." in name:
                names[name] = name.replace(one, two)
    with GGUFWriter(target, "clip") as writer:
        for key in reader.metadata:
            if key not in ("general.architecture", *changes):
                writer.set(key, reader.metadata[key], reader.metadata.type_of(key))
        for key, change in changes.items():
            if change is not None:
                writer.set(key, *change)
        for info in reader.tensors:
            writer.add_tensor(names[info.name], info.dtype, info.shape)
        for info in reader.tensors:
            writer.write(names[info.name], reader.tensor(info.name).numpy())
    return target


def rows(file: Path) -> np.ndarray:
    encoder = MediaEncoder(load_media(GGUFReader(file))["image"], find_device("cpu"), threads=1)
    return np.concatenate([encoder.encode(view) for view in encoder.model.views(picture(97, 130))])


def test_projector_names(checkpoint: tuple[str, Path]) -> None:
    name, folder = checkpoint
    assert GGUFReader(folder / "mmproj.gguf").metadata["clip.projector_type"] == NAMES[name]


def test_files_of_the_first_converter(checkpoint: tuple[str, Path], tmp_path: Path) -> None:
    """It exchanged the names of the MLP's matrices, and wrote 0 for its width."""
    _, folder = checkpoint
    changes: dict[str, tuple[object, str] | None] = {
        "clip.vision.feed_forward_length": (0, "u32"),
        "clip.vision.spatial_merge_size": None,
    }
    old = rewritten(folder / "mmproj.gguf", tmp_path / "old.gguf", changes, swaps=True)
    assert np.array_equal(rows(old), rows(folder / "mmproj.gguf"))


def test_window_is_112_pixels_without_the_key(checkpoint: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = checkpoint
    if name == "qwen2vl":
        pytest.skip("no windows")
    source, key = folder / "mmproj.gguf", "clip.vision.window_size"
    absent = rewritten(source, tmp_path / "absent.gguf", {key: None}, swaps=False)
    present = rewritten(source, tmp_path / "present.gguf", {key: (112, "u32")}, swaps=False)
    assert np.array_equal(rows(absent), rows(present))
    assert not np.allclose(rows(absent), rows(source))
    with pytest.raises(LoadError, match="window of 9 pixels"):
        load_media(GGUFReader(rewritten(source, tmp_path / "small.gguf", {key: (9, "u32")}, swaps=False)))


@pytest.mark.parametrize(
    ("field", "value"), [("fullatt_block_indexes", [0, 3]), ("hidden_act", "relu"), ("fullatt_block_indexes", [1])]
)
def test_unsupported_configurations(checkpoint: tuple[str, Path], tmp_path: Path, field: str, value: object) -> None:
    name, folder = checkpoint
    if name == "qwen2vl" and field != "hidden_act":
        pytest.skip("no windows")
    for file in folder.glob("*.safetensors"):
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"][field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match=field):
        convert_projector(tmp_path, tmp_path / "mmproj.gguf")
