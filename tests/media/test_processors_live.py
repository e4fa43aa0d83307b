"""Image processors give the pixels of transformers' Pillow processors, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from image_processor_cases import CASES, SIZES, expected_views, ours, picture, reference_of

images = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", CASES)
def test_pixels_equal_transformers(name: str, size: tuple[int, int]) -> None:
    image = picture(*size)
    try:
        # A PIL image: for an array with a side of 1 or 3 the reference guesses the layout.
        output = reference_of(name)(images=images.fromarray(image), return_tensors="np")
    except (ValueError, ZeroDivisionError, RuntimeError):
        with pytest.raises(ValueError, match=rf"{size[1]}x{size[0]}"):
            ours(name).process(image)
        return
    expected = expected_views(name, output, CASES[name][2])
    found = ours(name).process(image)
    assert len(found.views) == len(expected) == len(found.layout.views)
    for view, wanted, grid in zip(found.views, expected, found.layout.views, strict=True):
        assert (view.n_rows, view.n_cols) == grid
        assert view.patches.dtype == np.float32
        assert np.array_equal(view.patches, wanted)
