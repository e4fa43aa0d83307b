"""Checkpoint folders with some tensors replaced, for models whose weights change while they are open."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import RequestError, UnsupportedError
from ...files.safetensors import SafetensorsFolder
from ...files.whole_file import WholeFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["NewTensors", "write_with_tensors"]

NewTensors: TypeAlias = "Mapping[str, Any] | Iterable[tuple[str, Any]]"
"""Tensors of PyTorch or arrays of NumPy by the names of the checkpoint, or pairs of both."""
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_WEIGHTS = (".safetensors", ".safetensors.index.json")


def write_with_tensors(source: Path, tensors: NewTensors, target: Path) -> None:
    """Write a checkpoint folder that is ``source`` with new tensors.

    Other files are linked, and tensors that are not given are copied.

    Raises:
        UnsupportedError: ``source`` is not a checkpoint folder, or a tensor is of a type that is no floating point.
        RequestError: The checkpoint has no tensor of this name, or it has another shape.
    """
    if not source.is_dir():
        raise UnsupportedError(
            "[update_weights] tensors need a model that was opened from a checkpoint folder: give a file instead"
        )
    old = SafetensorsFolder(source)
    given = dict(tensors.items() if isinstance(tensors, Mapping) else tensors)
    for name in [name for name in given if name not in old and _is_tied(source, name)]:
        del given[name]  # the output matrix is the input's
    new = {name: _raw(name, value) for name, value in given.items()}
    for name, (_, shape, _) in new.items():
        if name not in old:
            raise RequestError(f"[update_weights] the checkpoint has no tensor {name!r:.120}")
        if shape != old.shape(name):
            raise RequestError(f"[update_weights] {name} has the shape {shape}: expected {old.shape(name)}")
    for path in source.iterdir():
        if not path.name.endswith(_WEIGHTS):
            _link(path, target / path.name)
    header: dict[str, Any] = {}
    at = 0
    for name in old:
        dtype, shape, data = new.get(name) or (old.dtype(name), old.shape(name), None)
        n_bytes = old.n_bytes(name) if data is None else data.nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with WholeFile(target / "model.safetensors", "update_weights", at) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in old:
            data = new[name][2] if name in new else old.array(name)
            file.write(data.tobytes())


def _is_tied(source: Path, name: str) -> bool:
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return name == "lm_head.weight" and bool(config.get("tie_word_embeddings", True))


def _raw(name: str, value: Any) -> tuple[str, tuple[int, ...], npt.NDArray[np.generic]]:
    """Return a tensor's type, shape and data."""
    import numpy as np

    if hasattr(value, "detach"):  # PyTorch's
        value = value.detach().to("cpu").contiguous()
        kind = str(value.dtype).rpartition(".")[2]
        if kind == "bfloat16":  # NumPy has no such type
            import sys

            value = value.view(sys.modules["torch"].int16)
        value = value.numpy()
    else:
        value = np.ascontiguousarray(value)
        kind = value.dtype.name
    if kind not in _TYPES:
        raise UnsupportedError(f"[update_weights] {name} is {kind}: give float32, bfloat16 or float16")
    shape = tuple(int(n) for n in value.shape)
    assert math.prod(shape) == value.size
    return _TYPES[kind], shape, value


def _link(path: Path, target: Path) -> None:
    try:
        os.symlink(path.resolve(), target)
    except OSError:  # Windows without the right to make links
        (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
