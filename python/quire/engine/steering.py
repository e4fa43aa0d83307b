"""The control vectors of a model: GGUF files as llama.cpp reads them, chosen and scaled per request.

A file has a tensor ``direction.N`` for layers from 1 on, which is added to the hidden state after that layer.  All
vectors are columns of one matrix per layer; a step brings each token's scales, so requests in a batch may differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .._native.core import Tensor
from .._native.graph import Weight
from ..errors import LoadError, RequestError
from ..files.gguf import GGUFReader
from ..nn.steering import Steering

__all__ = ["MOST_VECTORS", "ControlVectors"]

MOST_VECTORS = 32
_DIRECTION = re.compile(r"direction\.([0-9]{1,5})")


class ControlVectors:
    """Control vectors by name, the file's name without its ending, with the scales of requests that choose none."""

    def __init__(
        self, files: Sequence[tuple[str, float]], dim: int, n_layer: int, layer_range: tuple[int, ...] = ()
    ) -> None:
        """Read the files.  LoadError naming one that does not fit; RequestError for two of one name."""
        if len(files) > MOST_VECTORS:
            raise RequestError(f"[engine] {len(files)} control vectors: at most {MOST_VECTORS} are allowed")
        first, last = layer_range or (1, n_layer)
        self.scales: dict[str, float] = {}
        columns: dict[int, npt.NDArray[np.float32]] = {}
        for i, (path, scale) in enumerate(files):
            name = Path(path).stem
            if name in self.scales:
                raise RequestError(f"[engine] two control vectors are called {name!r:.80}")
            self.scales[name] = scale
            for layer, direction in _directions(path, dim, n_layer).items():
                if first <= layer <= last:
                    columns.setdefault(layer, np.zeros((dim, MOST_VECTORS), np.float32))[:, i] = direction
        weights = {layer: Weight(f"control.{layer}", Tensor.from_numpy(each)) for layer, each in columns.items()}
        # None: no layer of the range has a direction.
        self.steering = Steering(MOST_VECTORS, weights) if weights else None

    def chosen(self, choice: Sequence[tuple[str, float]] | None) -> list[float]:
        """Return the numbers that steer a request.  RequestError for an unknown name."""
        scales = self.scales if choice is None else dict.fromkeys(self.scales, 0.0)
        for name, scale in choice or ():
            if name not in scales:
                known = ", ".join(self.scales)
                raise RequestError(f"[control_vectors] unknown control vector {name!r:.80}: expected some of {known}")
            scales[name] = scale
        return [] if self.steering is None else [*scales.values(), *[0.0] * (MOST_VECTORS - len(scales))]


def _directions(path: str, dim: int, n_layer: int) -> dict[int, npt.NDArray[np.float32]]:
    reader, found = GGUFReader(path), dict[int, npt.NDArray[np.float32]]()
    for name in (info.name for info in reader.tensors):
        match = _DIRECTION.fullmatch(name)
        if match is None:
            continue
        layer, values = int(match[1]), np.array(reader.tensor(name).numpy(), np.float32)
        if values.shape != (dim,):
            raise LoadError(f"[control-vector] {name} of {path} has shape {values.shape}: expected ({dim},)")
        if not np.isfinite(values).all():
            raise LoadError(f"[control-vector] {name} of {path} is not finite")
        if layer == 0:
            raise LoadError(f"[control-vector] {path} has a direction for layer 0, which cannot be steered")
        if layer < n_layer:
            found[layer] = values
    if not found:
        raise LoadError(f"[control-vector] {path} has no direction for the layers of this model")
    return found
