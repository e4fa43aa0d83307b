"""Choose a grid of tiles by an image's aspect ratio, as InternVL and LFM2-VL do."""

from __future__ import annotations

__all__ = ["nearest_grid"]


def nearest_grid(height: int, width: int, tile: tuple[int, int], least: int, most: int) -> tuple[int, int]:
    """Return rows and columns of the grid of ``least`` to ``most`` tiles whose aspect ratio is nearest to the image's.

    Of equally near grids, the larger one wins if its tiles cover less than twice the image's area.
    """
    grids = [
        (cols, rows)
        for cols in range(1, most + 1)
        for rows in range(1, most + 1)
        if least <= cols * rows <= most
    ]  # fmt: skip
    grids.sort(key=lambda grid: grid[0] * grid[1])
    shape, area = width / height, width * height
    best, distance = (1, 1), float("inf")
    for cols, rows in grids:
        away = abs(shape - cols / rows)
        if away < distance or (away == distance and area > 0.5 * tile[0] * tile[1] * cols * rows):
            best, distance = (cols, rows), away
    return best[1], best[0]
