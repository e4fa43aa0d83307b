"""Hidden states after each layer of an encoder, in Quire and in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from quire._native.core import find_device
from quire.engine.media import MediaEncoder
from quire.models.media import MediaModel, trace_stage
from tiny_media import TinyFamily

__all__ = ["deviation_of_layers"]

Floats = npt.NDArray[np.float32]


class _LayerStates(MediaEncoder):
    """An encoder that remembers the hidden states ``[rows, dim]`` after each layer, view by view."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.states: list[Floats] = []

    def encode(self, view: Any) -> Floats:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("quire.engine.media.trace_stage", partial(trace_stage, taps=True))
            return super().encode(view)

    def _run(self, stage: str, features: Floats, *args: Any) -> Floats:
        rows = super()._run(stage, features, *args)
        executor = self._stages[stage]
        self.states += [executor.tap(layer, len(features)) for layer in executor.tapped_layers]
        return rows


@contextmanager
def _watched(model: Any, n_layer: int) -> Iterator[list[Floats]]:
    """Remember what each layer of transformers' encoder returns, in the order of the calls.

    Lists of fewer than ``n_layer`` modules hold something else than layers.  Quire leaves out layers that are not used.
    """
    import torch

    seen: list[Floats] = []

    def remember(module: Any, args: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        seen.append(states.numpy().copy())

    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList) and len(each) >= n_layer]
    hooks = [layer.register_forward_hook(remember) for each in lists for layer in list(each)[:n_layer]]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _views_of(states: Floats, n_views: int) -> list[Floats]:
    """Return the rows of each view: transformers computes an item's views as a batch, or one after the other."""
    assert states.ndim == 2 or len(states) in (1, n_views)
    return list(states) if states.ndim == 3 else [states]


def deviation_of_layers(
    family: TinyFamily, oracle: Any, model: MediaModel, data: npt.NDArray[Any], kernels: Literal["cpu", "stock"]
) -> float:
    """Return the largest deviation of a layer's output from transformers', relative to the largest of its numbers."""
    import torch

    n_layer, views = sum(stage.n_layer for stage in model.stages.values()), model.views(data)
    with torch.no_grad(), _watched(oracle, n_layer) as seen:
        family.encoded(oracle, data)
    encoder = _LayerStates(model, find_device("cpu"), threads=2, kernels=kernels)
    for view in views:
        encoder.encode(view)
    found: list[float] = []
    for i in range(n_layer):
        computed = encoder.states[i::n_layer]
        expected = [rows for states in seen[i::n_layer] for rows in _views_of(states, len(views))]
        for ours, theirs in zip(computed, expected, strict=True):
            rows = theirs[: len(ours)]  # padded rows follow
            found.append(float(np.abs(ours - rows).max() / np.abs(rows).max()))
    return float(np.max(found))
