"""Run a vision encoder: patches of an image in, rows for the language model out."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .._native.core import Device
from .._native.graph import Executor
from ..errors import CapacityError, ShapeError
from ..files.gguf import GGUFReader
from ..media import View
from ..media.pixels import Floats
from ..models.vision import load_vision, trace_encoder, trace_projector
from ..models.vision.grids import merged_places

__all__ = ["VisionEncoder"]


class VisionEncoder:
    """The vision encoder of an ``mmproj`` file on a device.  One thread at a time."""

    def __init__(
        self,
        reader: GGUFReader,
        device: Device,
        *,
        max_patches: int = 4096,
        threads: int = 0,
        kernels: Literal["auto", "stock", "cpu"] = "auto",
    ) -> None:
        """Load the encoder.

        Args:
            reader: The ``mmproj`` file; it must outlive the encoder.
            device: Where the encoder runs.
            max_patches: Patches of the largest image.
            threads: Threads on the CPU; 0 for one per core.
            kernels: As for ``Executor``.
        """
        self.model = load_vision(reader)
        square = self.model.merge**2
        self._encoder = Executor(
            trace_encoder(self.model, max_patches), device, n_blocks=1, threads=threads, kernels=kernels,
            max_rows=max_patches, max_sequences=1,
        )  # fmt: skip
        shares = self._encoder if self._encoder.kernels == "cpu" else None
        self._projector = Executor(
            trace_projector(self.model, max_patches // square), device, n_blocks=1, threads=threads, kernels=kernels,
            max_rows=max_patches // square, max_sequences=1, team_of=shares,
        )  # fmt: skip
        self.max_patches = max_patches

    def encode(self, view: View) -> Floats:
        """Return the rows ``[tokens, n_out]`` of one view.

        Raises:
            CapacityError: The view has more than ``max_patches``.
            ShapeError: Its patches are another model's.
        """
        model, n = self.model, view.n_rows * view.n_cols
        if view.patches.shape != (n, model.patch_dim) or view.n_rows % model.merge or view.n_cols % model.merge:
            raise ShapeError(
                f"[vision] patches of shape {view.patches.shape} for {view.n_rows} rows of {view.n_cols}: "
                f"expected [{n}, {model.patch_dim}]"
            )
        if n > self.max_patches:
            raise CapacityError(f"[vision] the image has {n} patches: at most {self.max_patches} fit")
        rows, cols = merged_places(view.n_rows, view.n_cols, model.merge)
        axes = np.concatenate([np.zeros_like(rows), rows, cols])
        states = _run(self._encoder, model.inputs(view.patches, view.n_rows, view.n_cols), axes.tolist())
        square = model.merge**2
        merged = [states, *(self._encoder.tap(layer, n) for layer in model.taps)]
        # Rows of a square's patches lie side by side, so that a token's row is theirs.
        tokens = np.concatenate([x.reshape(n // square, square * model.dim) for x in merged], axis=1)
        return _run(self._projector, tokens, [])


def _run(executor: Executor, features: Floats, axes: list[int]) -> Floats:
    n = len(features)
    every = list(range(n))
    return executor.run(
        [0] * n, positions=every, slots=[0] * n, logit_rows=every, row_begin=[0, n], n_kv=[n], tables=[[]], axes=axes,
        features=features,
    )  # fmt: skip
