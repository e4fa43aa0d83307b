"""transformers' image processors with settings of published checkpoints, and images of awkward sizes."""

from __future__ import annotations

import base64
import importlib
import io
from typing import Any

import numpy as np
from quire.media import ImageProcessor, open_processor

SIZES = [
    (1, 1),
    (1, 90),
    (64, 64),
    (97, 211),
    (333, 100),
    (500, 375),
    (768, 1024),
    (1500, 333),
    (40, 1800),
    (1024, 1024),
]

# transformers' class, its settings, patch, merge.
CASES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "qwen2-vl": ("qwen2_vl.Qwen2VLImageProcessorPil", {}, 14, 2),
    "qwen3-vl": (
        "qwen2_vl.Qwen2VLImageProcessorPil",
        {
            "patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        },
        16, 2,
    ),
    "qwen-old-limits": ("qwen2_vl.Qwen2VLImageProcessorPil", {"min_pixels": 3136, "max_pixels": 100352}, 14, 2),
    "glm4v": ("glm4v.Glm4vImageProcessorPil", {}, 14, 2),
    "glm4v-small": (
        "glm46v.Glm46VImageProcessorPil", {"size": {"shortest_edge": 50000, "longest_edge": 120000}}, 14, 2,
    ),
    "idefics3": ("idefics3.Idefics3ImageProcessorPil", {}, 14, 2),
    "smolvlm": (
        "smolvlm.SmolVLMImageProcessorPil",
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}, 16, 4,
    ),
    "smolvlm-2.2b": (
        "smolvlm.SmolVLMImageProcessorPil",
        {"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}}, 14, 3,
    ),
    "smolvlm-whole": ("smolvlm.SmolVLMImageProcessorPil", {"do_image_splitting": False}, 14, 2),
    "gemma3": ("gemma3.Gemma3ImageProcessorPil", {"size": {"height": 896, "width": 896}}, 14, 4),
    "gemma4": ("gemma4.Gemma4ImageProcessorPil", {}, 16, 3),
    "gemma4-70": ("gemma4.Gemma4ImageProcessorPil", {"max_soft_tokens": 70}, 16, 3),
    "paddleocr-vl": ("paddleocr_vl.PaddleOCRVLImageProcessorPil", {}, 14, 2),
    "pixtral": ("pixtral.PixtralImageProcessorPil", {}, 16, 1),
    "mistral3": (
        "pixtral.PixtralImageProcessorPil",
        {"size": {"longest_edge": 1540}, "patch_size": {"height": 28, "width": 28}}, 14, 2,
    ),
    "internvl": (
        "got_ocr2.GotOcr2ImageProcessorPil",
        {"size": {"height": 448, "width": 448}, "crop_to_patches": True}, 14, 2,
    ),
    "internvl-whole": ("got_ocr2.GotOcr2ImageProcessorPil", {"size": {"height": 448, "width": 448}}, 14, 2),
    "internvl-few": (
        "got_ocr2.GotOcr2ImageProcessorPil",
        {"size": {"height": 224, "width": 224}, "crop_to_patches": True, "min_patches": 2, "max_patches": 5}, 14, 2,
    ),
    "llava-1.5": (
        "clip.CLIPImageProcessorPil",
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}, 14, 1,
    ),
    "llava-padded": (
        "llava.LlavaImageProcessorPil",
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "do_pad": True}, 14, 1,
    ),
    "siglip": ("siglip.SiglipImageProcessorPil", {"size": {"height": 384, "width": 384}}, 14, 1),
    "siglip2": ("siglip2.Siglip2ImageProcessorPil", {"patch_size": 16, "max_num_patches": 256}, 16, 1),
    "llava-1.6": (
        "llava_next.LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}, 14, 1,
    ),
}  # fmt: skip


def picture(height: int, width: int) -> np.ndarray:
    """Return a smooth image with noise, so that filters matter, of integers, so that it is the same everywhere."""
    rng = np.random.default_rng(height * 10_000 + width)
    rows, cols = np.mgrid[0:height, 0:width]
    # Triangle waves between 0 and 120, with a different period per channel.
    waves = [abs((rows * (3 + channel) + cols * 2) % 240 - 120) for channel in range(3)]
    return (np.stack(waves, axis=-1) + rng.integers(0, 136, (height, width, 3))).astype(np.uint8)


def data_url(image: np.ndarray) -> str:
    """Return an image as a data: URL."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def reference_of(name: str) -> Any:
    path, settings, _, _ = CASES[name]
    module, cls = path.rsplit(".", 1)
    package = f"transformers.models.{module}.image_processing_pil_{module}"
    return getattr(importlib.import_module(package), cls)(**settings)


def ours(name: str) -> ImageProcessor:
    path, settings, patch, merge = CASES[name]
    config = {"image_processor_type": path.rsplit(".", 1)[1].removesuffix("Pil"), **settings}
    return open_processor(config, patch_size=patch, merge=merge)


def patches_of_image(pixels: np.ndarray, patch: int) -> np.ndarray:
    """Return a convolution's patches, computed in a loop."""
    rows, cols = pixels.shape[1] // patch, pixels.shape[2] // patch
    return np.stack(
        [
            pixels[:, row * patch : (row + 1) * patch, col * patch : (col + 1) * patch].ravel()
            for row in range(rows)
            for col in range(cols)
        ]
    )


def expected_views(name: str, output: Any, patch: int) -> list[np.ndarray]:
    pixels = output["pixel_values"]
    if name.startswith("paddle"):
        return [np.asarray(pixels).reshape(len(pixels), -1)]
    if name.startswith(("qwen", "glm")):
        return [np.asarray(pixels)]
    if name.startswith("gemma4"):
        kept = np.asarray(output["image_position_ids"][0])[:, 0] >= 0
        return [np.asarray(pixels[0])[kept]]
    if name == "siglip2":  # patches have their colours last
        (rows, cols), found = np.asarray(output["spatial_shapes"][0]), np.asarray(pixels[0])
        found = found[: rows * cols].reshape(-1, patch, patch, 3)
        return [found.transpose(0, 3, 1, 2).reshape(rows * cols, -1)]
    views = [
        np.asarray(view) for view in (pixels[0] if name.startswith(("idefics", "smolvlm", "llava-1.6")) else pixels)
    ]
    return [patches_of_image(view, patch) for view in views]
