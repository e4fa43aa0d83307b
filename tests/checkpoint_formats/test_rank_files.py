"""Grok 2's folders, in which experts are split among the files of ranks: they convert like the folder in one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quire.checkpoints.conversion import convert
from quire.errors import LoadError, UnsupportedError
from quire.safetensors import SafetensorsFile
from tiny_checkpoints import write_checkpoint, write_safetensors

pytestmark = pytest.mark.python_only

Array = npt.NDArray[np.float32]
COMMON, FIRST, SECOND = "m-00000-TP-common.safetensors", "m-00002-TP-000.safetensors", "m-00001-TP-001.safetensors"


def split(folder: Path) -> dict[str, dict[str, Array]]:
    """Replace the file by those of two ranks, and return their tensors."""
    whole = SafetensorsFile(folder / "model.safetensors")
    files: dict[str, dict[str, Array]] = {COMMON: {}, FIRST: {}, SECOND: {}}
    for name in whole:
        values = whole.array(name)
        if ".experts." in name:
            axis = 1 if ".w2." in name else 0
            files[FIRST][name], files[SECOND][name] = np.split(values, [values.shape[axis] // 4], axis)
        else:
            files[COMMON][name] = values
    (folder / "model.safetensors").unlink()
    write(folder, files)
    return files


def write(folder: Path, files: dict[str, dict[str, Array]]) -> None:
    for name, tensors in files.items():
        write_safetensors(folder / name, tensors)


def test_parts_are_joined(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "grok")
    convert(tmp_path / "hf", tmp_path / "whole.gguf", "f32")
    split(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "split.gguf", "f32")
    assert (tmp_path / "split.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_missing_rank_is_an_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "grok")
    split(tmp_path)
    (tmp_path / FIRST).unlink()
    with pytest.raises(LoadError, match="001"):
        convert(tmp_path, tmp_path / "x.gguf", "f32")


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "grok")
    files = split(tmp_path)
    name = min(files[SECOND])
    files["m-00003-TP-002.safetensors"] = {other: x for other, x in files[SECOND].items() if other != name}
    write(tmp_path, files)
    with pytest.raises(LoadError, match="in the files of 2 of 3 ranks"):
        convert(tmp_path, tmp_path / "x.gguf", "f32")


def test_other_split_tensors_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "grok")
    files = split(tmp_path)
    for rank in (FIRST, SECOND):
        files[rank]["lm_head.weight"] = files[COMMON]["lm_head.weight"]
    del files[COMMON]["lm_head.weight"]
    write(tmp_path, files)
    with pytest.raises(UnsupportedError, match=r"'lm_head\.weight'"):
        convert(tmp_path, tmp_path / "x.gguf", "f32")
