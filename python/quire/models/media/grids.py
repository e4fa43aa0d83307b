"""Grids of patches: their order in merged squares and in windows, and interpolation of position embeddings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...media.pixels import Floats

__all__ = [
    "antialiased_rows",
    "averaged",
    "bilinear_rows",
    "centred_rows",
    "merged_places",
    "merged_rows",
    "window_order",
]


def merged_places(n_rows: int, n_cols: int, merge: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the row and the column of each patch, in the order of squares of ``merge`` x ``merge`` patches."""

    def ordered(grid: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        split = grid.reshape(n_rows // merge, merge, n_cols // merge, merge)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(-1)

    rows, cols = np.mgrid[0:n_rows, 0:n_cols].astype(np.int32)
    return ordered(rows), ordered(cols)


def window_order(n_rows: int, n_cols: int, side: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of a grid in the order of windows of at most ``side`` x ``side``, and the size of each window.

    Places are numbered row by row, and stay in this order within a window.
    """
    rows, cols = np.mgrid[0:n_rows, 0:n_cols].reshape(2, -1)
    window = rows // side * -(-n_cols // side) + cols // side
    return np.argsort(window, kind="stable"), np.bincount(window)


def merged_rows(rows: Floats, n_rows: int, n_cols: int, merge: int) -> Floats:
    """Join each square of ``merge`` x ``merge`` rows of a grid to one row, the square's rows after each other."""
    split = rows.reshape(n_rows // merge, merge, n_cols // merge, merge, -1)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3, 4)).reshape(n_rows * n_cols // merge**2, -1)


def bilinear_rows(table: Floats, n_rows: int, n_cols: int) -> Floats:
    """Interpolate a square grid of vectors to ``n_rows`` x ``n_cols`` patches: bilinear, with corners aligned.

    Args:
        table: float32 [side, side, n].
        n_rows: Rows of the new grid.
        n_cols: Columns of the new grid.

    Returns:
        float32 [n_rows, n_cols, n].
    """
    side = len(table)

    def places(n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
        at = np.arange(n, dtype=np.float32) * np.float32((side - 1) / max(n - 1, 1))
        low = np.minimum(at.astype(np.int64), side - 1)
        return low, np.minimum(low + 1, side - 1), (at - low).astype(np.float32)

    top, bottom, down = places(n_rows)
    left, right, across = places(n_cols)
    down, across = down[:, None, None], across[None, :, None]
    upper = table[top][:, left] * (1 - across) + table[top][:, right] * across
    lower = table[bottom][:, left] * (1 - across) + table[bottom][:, right] * across
    return (upper * (1 - down) + lower * down).astype(np.float32, copy=False)


def averaged(patches: Floats, n_rows: int, n_cols: int, merge: int) -> Floats:
    """Average squares of ``merge`` x ``merge`` patches: ``[n_rows * n_cols, n]``, row by row, to ``[squares, n]``."""
    squares = patches.reshape(n_rows // merge, merge, n_cols // merge, merge, -1)
    means: Floats = squares.mean(axis=(1, 3), dtype=np.float32)
    return means.reshape(-1, patches.shape[1])


def centred_rows(table: Floats, n_rows: int, n_cols: int, *, is_cubic: bool) -> Floats:
    """Interpolate a square grid of vectors as ``bilinear_rows``, but with centres of patches aligned.

    Beyond the border, the grid continues with its last vectors.  ``is_cubic``: bicubic, else bilinear.
    """
    side, a = len(table), np.float32(-0.75)

    def taps(n: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the places of the vectors for each patch, and their weights."""
        at = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * np.float32(side / n) - np.float32(0.5)
        low = np.floor(at)
        offsets = np.arange(-1, 3) if is_cubic else np.arange(2)
        far = np.abs((at - low)[:, None] - offsets).astype(np.float32)
        if is_cubic:
            inner = ((a + 2) * far - (a + 3)) * far * far + 1
            outer = ((far - 5) * far + 8) * far * a - 4 * a
            weights = np.where(far <= 1, inner, outer).astype(np.float32)
        else:
            weights = 1 - far
        return np.clip(low.astype(np.int64)[:, None] + offsets, 0, side - 1), weights

    rows, down = taps(n_rows)
    cols, across = taps(n_cols)
    upright = np.einsum("rt,rtcd->rcd", down, table[rows])
    found: Floats = np.einsum("ct,rctd->rcd", across, upright[:, cols])
    return found


def antialiased_rows(table: Floats, n_rows: int, n_cols: int) -> Floats:
    """Interpolate a square grid of vectors as ``centred_rows``, bilinear, but with a wider filter where it shrinks."""
    side = len(table)

    def weights(n: int) -> Floats:
        """Return the weight of each of the table's places, for each patch."""
        scale = np.float32(side / n)
        centre = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        far = np.abs(np.arange(side, dtype=np.float32) - centre[:, None]) / max(scale, np.float32(1))
        near: Floats = np.maximum(1 - far, 0).astype(np.float32)
        near /= near.sum(axis=1, keepdims=True)
        return near

    upright = np.einsum("rs,sct->rct", weights(n_rows), table)
    found: Floats = np.einsum("cs,rst->rct", weights(n_cols), upright)
    return found
