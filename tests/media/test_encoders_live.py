"""Encoders of images equal transformers', with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire._native.core import find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.files.gguf import GGUFReader
from quire.media import open_processor
from quire.models.media import load_media

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# The last has more patches than an encoder has room for at first.
SIZES = [(64, 64), (97, 211), (333, 100), (32, 640), (40, 33), (224, 224), (544, 544)]


@pytest.fixture(scope="module")
def qwen3vl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(3)
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
            "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        },
        vision_config={
            "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 32,
            "num_position_embeddings": 144, "deepstack_visual_indexes": [1, 2],
        },
    )  # fmt: skip
    model = transformers.Qwen3VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith(".bias"):
                weight.add_(torch.randn_like(weight) * 0.2)
    folder = tmp_path_factory.mktemp("qwen3vl")
    model.save_pretrained(folder)
    return model, folder


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
@pytest.mark.parametrize("dtype", ["f32"])
def test_qwen3vl(qwen3vl: tuple[Any, Path], tmp_path: Path, dtype: str, kernels: str) -> None:
    model, folder = qwen3vl
    convert_projector(folder, tmp_path / "mmproj.gguf", dtype)
    encoded = load_media(GGUFReader(tmp_path / "mmproj.gguf"))["image"]
    encoder = MediaEncoder(encoded, find_device("cpu"), threads=2, kernels=kernels)
    config = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
        "min_pixels": 1024,
        "max_pixels": 1 << 20,
    }
    processor = open_processor(config, patch_size=16, merge=2)
    for size in SIZES:
        (view,) = processor.process(picture(*size)).views
        with torch.no_grad():
            output = model.model.visual(torch.from_numpy(view.patches), torch.tensor([[1, view.n_rows, view.n_cols]]))
        expected = torch.cat([output.pooler_output, *output.deepstack_features], dim=1).numpy()
        found = encoder.encode(view)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
