"""Gemma 4 as in its 12B size: without an encoder, squares of pixels are projected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from quire.media import View, open_processor

from . import gemma4, randomized
from .gemma4 import MAX_TOKENS, MERGE, PATCH, PROCESSOR, mark_id

SIDE = PATCH * MERGE


def make(audio: dict[str, Any] | None = None) -> Any:
    """Return the model; without the configuration ``audio``, it does not hear."""
    import torch
    import transformers

    torch.manual_seed(13)
    config = transformers.Gemma4UnifiedConfig(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64,
            "max_position_embeddings": 2048, "sliding_window": 19, "pad_token_id": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        vision_config={
            "patch_size": PATCH, "pooling_kernel_size": MERGE, "mm_embed_dim": 48, "mm_posemb_size": 80,
            "output_proj_dims": 48,
        },
        audio_config=audio, boi_token_id=mark_id("<|image>"), eoi_token_id=mark_id("<image|>"),
        image_token_id=mark_id("<|image|>"), audio_token_id=mark_id("<|audio|>"), video_token_id=mark_id("<|video|>"),
    )  # fmt: skip
    model = randomized(transformers.Gemma4UnifiedForConditionalGeneration(config).eval())
    with torch.no_grad():
        model.model.embed_vision.pos_embedding.normal_(std=0.5)
    return model


def view_of(image: npt.NDArray[Any]) -> View:
    """Return an image's squares: the patches of a processor whose patches are as large."""
    config = {**PROCESSOR, "patch_size": SIDE, "pooling_kernel_size": 1}
    return open_processor(config, patch_size=SIDE, merge=1).process(image).views[0]


def pixels(images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import torch

    values = np.zeros((len(images), MAX_TOKENS, 3 * SIDE**2), np.float32)
    places = np.full((len(images), MAX_TOKENS, 2), -1)
    for i, image in enumerate(images):
        view = view_of(image)
        values[i, : len(view.patches)] = view.patches
        rows, cols = np.mgrid[0 : view.n_rows, 0 : view.n_cols].reshape(2, -1)
        places[i, : len(rows)] = np.stack([cols, rows], axis=1)
    return {"pixel_values": torch.from_numpy(values), "image_position_ids": torch.from_numpy(places)}


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return inputs with the masks that the class defines; by itself, forward() makes others."""
    import torch

    kinds = (tokens == mark_id("<|image|>")).int()
    masks = model.create_masks_for_generate(
        model.config, model.get_input_embeddings()(tokens), torch.ones_like(tokens), None,
        torch.arange(tokens.shape[1])[None], kinds,
    )  # fmt: skip
    return {"mm_token_type_ids": kinds, "attention_mask": masks, **pixels(images)}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    found = model.get_image_features(**pixels([image])).pooler_output
    rows: npt.NDArray[np.float32] = found[0].numpy()
    return rows[: len(view_of(image).patches)]


FAMILY = replace(gemma4.FAMILY, make=make, inputs=inputs, encoded=encoded)
