"""Image processors give the pixels that transformers' gave when processors.json was recorded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import ours, picture
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.media import open_processor

pytest.importorskip("PIL.Image")

RECORDS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("processors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, sizes in RECORDS.items() for size in sizes])
def test_pixels_equal_the_recorded_ones(name: str, size: str) -> None:
    height, width = map(int, size.split("x"))
    found = ours(name).process(picture(height, width))
    assert [list(view.patches.shape) for view in found.views] == RECORDS[name][size]["shapes"]
    digest = hashlib.sha256(b"".join(view.patches.tobytes() for view in found.views)).hexdigest()
    assert digest == RECORDS[name][size]["sha256"]


def test_layout_is_known_without_pixels() -> None:
    for name, sizes in RECORDS.items():
        for size in sizes:
            height, width = map(int, size.split("x"))
            processor = ours(name)
            layout, found = processor.layout(height, width), processor.process(picture(height, width))
            assert layout == found.layout
            assert layout.views == tuple((view.n_rows, view.n_cols) for view in found.views)
            assert len(layout.n_tokens) == len(layout.views)


def test_images_above_the_encoders_limit_are_shrunk() -> None:
    # Recorded from transformers' smart_resize, with the pixels of 16384 patches as its limit.
    for name, size, view in (
        ("qwen3-vl", (6000, 4000), (156, 104)), ("qwen3-vl", (900, 30000), (22, 738)), ("glm4v", (6000, 4000), (156, 104)),
    ):  # fmt: skip
        assert ours(name).limited(16384).layout(*size).views == (view,)
        assert ours(name).limited(16384).layout(97, 211) == ours(name).layout(97, 211)


def test_tokens_of_known_models() -> None:
    # Qwen3-VL: 32x32 pixels a token; SmolVLM: 64 a tile of 512; Gemma 3: 256 an image.
    assert ours("qwen3-vl").layout(1024, 768).n_tokens == (1024 * 768 // 1024,)
    assert ours("smolvlm").layout(1024, 1024).n_tokens == (64,) * 17
    assert ours("gemma3").layout(10, 3000).n_tokens == (256,)


def test_lfm2_vl_cuts_large_images() -> None:
    processor = open_processor({"image_processor_type": "Lfm2VlImageProcessorFast"}, patch_size=16, merge=2)
    # 256 tokens of 32x32 pixels: an image of twice as many pixels is still whole.
    assert processor.layout(512, 1024).tile_rows == 0
    layout = processor.layout(1024, 1600)
    assert (layout.tile_rows, layout.tile_cols) == (2, 3)
    assert layout.n_tokens[:-1] == (256,) * 6
    found = processor.process(picture(1024, 1600))
    assert [view.patches.shape for view in found.views] == [(r * c, 768) for r, c in layout.views]
    # Recorded from transformers with torchvision: the last view, and the number of tiles before it.
    for size, view, n_tiles in (
        ((1, 90), (2, 152), 0), ((333, 100), (30, 10), 0), ((40, 1800), (4, 108), 0), ((2000, 900), (46, 20), 10),
        ((1100, 1100), (32, 32), 9),
    ):  # fmt: skip
        assert processor.layout(*size).views == (*(((32, 32),) * n_tiles), view)


def test_canvases_of_llama4() -> None:
    processor = open_processor({"image_processor_type": "Llama4ImageProcessor"}, patch_size=14, merge=2)
    # Recorded from transformers with torchvision.
    for size, tiles in (
        ((97, 211), (0, 0)), ((500, 375), (2, 2)), ((768, 1024), (3, 4)), ((1500, 333), (5, 1)), ((40, 1800), (1, 6)),
        ((2000, 900), (5, 3)),
    ):  # fmt: skip
        layout = processor.layout(*size)
        assert (layout.tile_rows, layout.tile_cols) == tiles
    # Pixels are computed in BF16: 100 / 255 is 0.39257..., rounded to 0.392578125, then (x - 0.5) / 0.5.
    (view,) = processor.process(np.full((336, 336, 3), 100, np.uint8)).views
    assert np.unique(view.patches) == np.float32(-0.21484375)


def test_kimi_pads_to_whole_tokens() -> None:
    processor = open_processor({"image_processor_type": "Kimi_K25ImageProcessor"}, patch_size=14, merge=2)
    # Recorded from transformers with torchvision.
    for size, view in (
        ((97, 211), (8, 16)),
        ((500, 375), (36, 28)),
        ((2000, 3000), (106, 158)),
        ((30, 9000), (2, 512)),
    ):
        assert processor.layout(*size).views == (view,)
    (found,) = processor.process(np.full((14, 28, 3), 255, np.uint8)).views
    assert [float(patch.max()) for patch in found.patches] == [1, 1, -1, -1]


@pytest.mark.parametrize("size", [(1, 10_000), (10_000, 1), (3, 601)])
def test_extreme_shapes_are_refused_where_the_model_has_no_size_for_them(size: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match=f"{size[1]}x{size[0]}"):
        ours("qwen2-vl").layout(*size)


def test_settings() -> None:
    def opened(**settings: object) -> object:
        config = {"image_processor_type": "Qwen2VLImageProcessor", **settings}
        return open_processor(config, patch_size=14, merge=2)

    # Fields that the reference ignores too, and those of its configuration in parts.
    opened(processor_class="Qwen2VLProcessor", a_field_of_2031=3)
    nested = {"image_processor": {"image_processor_type": "Qwen2VLImageProcessorFast", "max_pixels": 3136}}
    assert open_processor(nested, patch_size=14, merge=2).layout(500, 500).n_tokens == (4,)
    for settings in (
        {"patch_size": 16}, {"image_std": [1, 0, 1]}, {"image_mean": [1, 2]}, {"image_mean": "x"}, {"resample": 9},
        {"min_pixels": 5000, "max_pixels": 4000}, {"max_pixels": 100}, {"rescale_factor": -1}, {"do_rescale": "no"},
        {"size": {"longest_edge": 0}}, {"temporal_patch_size": 1.5},
    ):  # fmt: skip
        with pytest.raises(LoadError):
            opened(**settings)
    for settings in ({"do_resize": False}, {"do_rescale": False}, {"do_convert_rgb": False}):
        with pytest.raises(UnsupportedError, match="do_"):
            opened(**settings)
    with pytest.raises(UnsupportedError, match="FooImageProcessor"):
        open_processor({"image_processor_type": "FooImageProcessor"}, patch_size=14, merge=2)
    with pytest.raises(LoadError, match="image_processor_type"):
        open_processor({}, patch_size=14, merge=2)
