"""Paged attention on Vulkan (native/vulkan), in steps of a small model.  Oracle: NumPy; tests of the device: ci/devices."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import small_model
from device_steps import Sequences, tokens_of
from small_model import VARIANTS, numpy_forward
from vulkan_device import vulkan

pytestmark = [pytest.mark.device, pytest.mark.python_only]
TOLERANCE = 3e-3  # relative to the norm of the logits; products on Vulkan round to F16
FEW = 3  # rows of a sequence in a step: for more, ggml's attention is cheaper, which lavapipe compiles for minutes
LENGTHS = (110, 33, 1, 70)


def small(monkeypatch: pytest.MonkeyPatch, head_dim: int, n_head: int, n_kv_head: int) -> None:
    """Give the small model these heads."""
    for field, value in (("HEAD_DIM", head_dim), ("N_HEAD", n_head), ("N_KV_HEAD", n_kv_head)):
        monkeypatch.setattr(small_model, field, value)


def logits(name: str, lengths: tuple[int, ...]) -> tuple[list[npt.NDArray[np.float32]], Sequences]:
    """Compute the logits of sequences, a few rows of each in a step."""
    made = Sequences(VARIANTS[name], SimpleNamespace(device=vulkan()), kv_dtype="f16")  # type: ignore[arg-type]
    for i, n in enumerate(lengths):
        made.add(tokens_of(n, i))
    found: list[list[npt.NDArray[np.float32]]] = [[] for _ in lengths]
    while left := [(s, n - made.done[s]) for s, n in enumerate(lengths) if n > made.done[s]]:
        step = [(s, 1 if n % FEW else min(n, FEW)) for s, n in left]  # rows that decode, beside longer drafts
        for (s, _), rows in zip(step, made.step(step), strict=True):
            found[s].append(rows)
    return [np.concatenate(rows) for rows in found], made


@pytest.mark.parametrize(
    ("head_dim", "n_head", "n_kv_head", "name"),
    [
        (32, 4, 2, "plain"),
        (64, 4, 2, "all"),
        (128, 7, 1, "sinks"),  # seven heads in groups of four and three
        (256, 3, 3, "window"),
    ],
)
def test_steps_equal_numpy(
    head_dim: int, n_head: int, n_kv_head: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, head_dim, n_head, n_kv_head)
    found, made = logits(name, LENGTHS)
    for rows, tokens in zip(found, made.tokens, strict=True):
        expected = numpy_forward(made.weights, VARIANTS[name], tokens)
        assert np.linalg.norm(rows - expected) < TOLERANCE * np.linalg.norm(expected)


def test_the_kernel_is_used_unless_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds in another order than ggml's attention."""
    small(monkeypatch, 64, 4, 2)
    ours = logits("plain", (70, 33))[0][0]
    monkeypatch.setenv("QUIRE_DEVICE_KERNELS", "0")
    theirs = logits("plain", (70, 33))[0][0]
    assert (ours != theirs).any()
    np.testing.assert_allclose(ours, theirs, atol=5e-3 * np.abs(theirs).max())
