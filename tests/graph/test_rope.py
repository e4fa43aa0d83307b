"""Rotations whose pairs turn by three places of a token (M-RoPE): NumPy against ggml's operator against our kernels.

The sections are those of transformers' ``apply_multimodal_rotary_pos_emb`` (Qwen2-VL) and
``apply_interleaved_mrope`` (Qwen3-VL).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from quire._native import graph
from quire.errors import InternalError, ShapeError
from trace_bench import Bench

Array = npt.NDArray[np.float32]
HEADS, DIM, BASE = 3, 16, 500.0
# A picture of 2 x 3 patches after the first token: time, height and width of every row.
PICTURE = np.array([[0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 1, 2, 3]])


def axes_by_pair(sections: tuple[int, int, int], take_turns: bool) -> list[int]:
    if not take_turns:
        return [axis for axis, n in enumerate(sections) for _ in range(n)]
    axes = [0] * sum(sections)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = [axis] * len(axes[axis : 3 * sections[axis] : 3])
    return axes


def rotated(x: Array, places: npt.NDArray[np.int64], sections: tuple[int, int, int], take_turns: bool) -> Array:
    """x ``[rows, heads, dim]``, places ``[3, rows]``."""
    half = sum(sections)
    by_pair = places[axes_by_pair(sections, take_turns)].T.astype(np.float64)
    angles = (by_pair * BASE ** (-np.arange(half) / half))[:, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines, rest], -1)


def spec(sections: tuple[int, int, int], take_turns: bool = False, **others: object) -> graph.RopeSpec:
    options = {"n_dims": 2 * sum(sections), "layout": "half", "freq_base": BASE, "sections": sections, **others}
    return graph.RopeSpec(take_turns=take_turns, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("take_turns", [False, True])
@pytest.mark.parametrize("sections", [(4, 2, 2), (2, 3, 3), (2, 1, 1), (0, 4, 4)])
def test_pairs_turn_by_their_axis(sections: tuple[int, int, int], take_turns: bool, kernels: str) -> None:
    for axes in (PICTURE, PICTURE[::-1] * 7 + 1, None):
        bench = Bench()
        x, numbers = bench.value(HEADS, DIM)
        y = graph.rope(x, bench.tracer.positions, spec(sections, take_turns))
        found = bench.run(y, kernels, [] if axes is None else axes.ravel().tolist())
        places = np.tile(np.arange(len(numbers)), (3, 1)) if axes is None else axes
        np.testing.assert_allclose(found, rotated(numbers, places, sections, take_turns), atol=1e-5)


def test_text_alone_turns_as_without_sections() -> None:
    found = []
    for sections in ((4, 2, 2), (0, 0, 0)):
        bench = Bench()
        x, _ = bench.value(HEADS, DIM)
        found.append(bench.run(graph.rope(x, bench.tracer.positions, spec(sections, n_dims=16)), "cpu"))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
def test_pairs_turn_back_and_by_earlier_positions(kernels: str) -> None:
    bench = Bench()
    x, numbers = bench.value(HEADS, DIM)
    how = {"n_dims": DIM, "layout": "half", "freq_base": BASE}
    turned = graph.rope(x, bench.tracer.positions, graph.RopeSpec(behind=3, **how))  # type: ignore[arg-type]
    back = graph.rope(x, bench.tracer.positions, graph.RopeSpec(inverse=True, **how))  # type: ignore[arg-type]
    places = np.tile(np.arange(len(numbers)), (3, 1))
    found = bench.run(graph.concat(turned, back, 0), kernels)
    for one, expected in zip(np.split(found, 2, -1), (places - 3, -places), strict=True):
        np.testing.assert_allclose(one, rotated(numbers, expected, (8, 0, 0), False), atol=1e-5)


def test_mismatched_shapes_are_refused() -> None:
    bench = Bench()
    x, _ = bench.value(HEADS, DIM)
    for wrong in (spec((4, 2, 1), n_dims=16), spec((9, -1, 0), n_dims=16), spec((4, 2, 2), layout="interleaved")):
        with pytest.raises(ShapeError, match=r"^\[rope\] sections are .*expected 8 pairs"):
            graph.rope(x, bench.tracer.positions, wrong)
    with pytest.raises(ShapeError, match="turn back"):
        graph.rope(x, bench.tracer.positions, spec((4, 2, 2), behind=1))
    with pytest.raises(InternalError, match="axes"):
        bench.run(graph.rope(x, bench.tracer.positions, spec((4, 2, 2))), "cpu", [1, 2, 3])
