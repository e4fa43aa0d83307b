"""Gemma 4 12B (Google 2026): no encoder, a product of the pixels of each token's square instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..._native.graph import slice
from ...checkpoints.mapping import Fields, Source, computed, f32, tensor, u32
from ...checkpoints.mapping.changes import Array
from ...media import Layout, View, open_processor
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights, unit_norm
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint
from .gemma4 import MERGE, max_pixels, merge_key, merge_of, places_of, settings, text_width

EPS = 1e-5  # torch's default for layer norms


class Gemma4Unified(MediaModel):
    pad = "<|image|>"
    template_text = "<|image|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.dim, self.n_out = (
            keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in ("embedding_length", "projection_dim")
        )
        self.eps = keys.number("vision.attention.layer_norm_epsilon")
        for name in ("block_count", "feed_forward_length", "attention.head_count"):
            keys.only(f"vision.{name}", 0)
        patch_size, merge = keys.integer("vision.patch_size", low=1, high=1 << 10), merge_of(keys)
        self.side = patch_size * merge
        self.patch_dim = 3 * self.side**2
        config = settings(keys, patch_size, merge)
        self.processor = open_processor(config, patch_size=self.side, merge=1)

        vision = weights.scope("v")
        self.pixel_norm = vision.layer_norm("patch_norm.1", self.patch_dim, EPS, bias=True)
        self.embedding = vision.linear("patch_embd", self.patch_dim, self.dim, bias=True)
        self.norm, self.position_norm = (vision.layer_norm(f"patch_norm.{i}", self.dim, EPS, bias=True) for i in (2, 3))
        # By column, then by row.
        self.positions = vision.numbers("position_embd.weight", (2, vision.n_columns("position_embd.weight"), self.dim))
        self.projection = weights.linear("mm.input_projection", self.dim, self.n_out)
        self.stages = {"projector": Stage(self.project)}

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|image>", sum(layout.n_tokens), "<image|>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = places_of(view, self.positions.shape[1])
        # Files order a square's numbers by color, then by row.
        pixels = view.patches.reshape(-1, self.side, self.side, 3).transpose(0, 3, 1, 2).reshape(-1, self.patch_dim)
        positions = self.positions[0, cols] + self.positions[1, rows]
        return run("projector", np.concatenate([pixels, positions], axis=1))

    def project(self, step: Step) -> Tensor:
        inputs = step.features(self.patch_dim + self.dim)
        x = self.norm(self.embedding(self.pixel_norm(slice(inputs, 0, 0, self.patch_dim))))
        x = self.position_norm(x + slice(inputs, 0, self.patch_dim, self.patch_dim + self.dim))
        return self.projection(unit_norm(x, self.eps))


MODELS = {"gemma4uv": Gemma4Unified}

# --- checkpoint ---


def _by_color(x: Array, config: Fields) -> Array:
    """Order the last axis, numbers of a square, by color instead of by pixel."""
    side = config.integer("patch_size", 16) * config.integer("pooling_kernel_size", MERGE)
    return np.ascontiguousarray(np.moveaxis(x.reshape(*x.shape[:-1], side, side, 3), -1, -3)).reshape(x.shape)


def _by_axis(x: Array, config: Fields) -> Array:
    return np.ascontiguousarray(x.transpose(1, 0, 2))


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_norm.1.weight": tensor("vision_embedder.patch_ln1.weight", change=_by_color),
        "v.patch_norm.1.bias": tensor("vision_embedder.patch_ln1.bias", change=_by_color),
        "v.patch_embd.weight": tensor("vision_embedder.patch_dense.weight", change=_by_color),
        "v.patch_embd.bias": "vision_embedder.patch_dense.bias",
        "v.patch_norm.2": "vision_embedder.patch_ln2",
        "v.patch_norm.3": "vision_embedder.pos_norm",
        "v.position_embd.weight": tensor("vision_embedder.pos_embedding", change=_by_axis),
        "mm.input_projection": "embed_vision.embedding_projection",
    }


def _none(config: Fields) -> int:
    return 0


HF = {
    "Gemma4UnifiedForConditionalGeneration": MediaCheckpoint(
        "gemma4uv",
        "vision_config",
        {
            "vision_embedder.": ("model.vision_embedder.", "vision_embedder."),
            "embed_vision.": ("model.embed_vision.", "embed_vision."),
        },
        {
            "vision.embedding_length": u32("mm_embed_dim", default=3840),
            "vision.block_count": computed("u32", _none),
            "vision.feed_forward_length": computed("u32", _none),
            "vision.attention.head_count": computed("u32", _none),
            "vision.attention.layer_norm_epsilon": f32("rms_norm_eps", default=1e-6),
            "vision.patch_size": u32("patch_size", default=16),
            "vision.image_size": computed("u32", lambda config: 224),  # llama.cpp wants one, and does not use it
            "vision.projector.scale_factor": computed("u32", merge_key),
        },
        _tensors,
        whole_keys={"vision.projection_dim": computed("u32", text_width)},
        settings={"vision.image_max_pixels": computed("u32", max_pixels)},
        limits_pixels=False,
    )
}
