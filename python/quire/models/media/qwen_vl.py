"""The encoders of Qwen's models: pairs of frames, RoPE by row and column, tokens of merged patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ...checkpoints.mapping import Source, computed, tensor, u32
from ...checkpoints.mapping.keys import Key
from ...errors import LoadError
from ...media import ImageProcessor, Layout
from ...nn import Keys, Weights
from .base import MediaModel
from .checkpoint import frame_of, image_processor
from .vit import axial_rope, patch_embedding

__all__ = ["EPS", "FRAME_TENSORS", "SIZE_KEYS", "QwenVl"]

EPS = 1e-6  # transformers does not read it from the configuration
FRAMES = 2
IMAGE_SIZE = 560  # required by llama.cpp, without effect
SIZES = ("embedding_length", "block_count", "attention.head_count", "patch_size", "projection_dim")


class QwenVl(MediaModel):
    pad: str = "<|image_pad|>"
    around: tuple[str, str] = ("<|vision_start|>", "<|vision_end|>")
    FIXED_EPS: ClassVar[bool] = True

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, self.n_layer, self.patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        self.n_head, self.n_text = read["attention.head_count"], read["projection_dim"]
        self.merge = keys.integer("vision.spatial_merge_size", 2, low=1, high=64)  # patches along a token's side
        if self.dim % (4 * self.n_head):
            raise LoadError(f"[clip] embedding_length {self.dim} does not divide into {self.n_head} heads of 4 parts")
        if self.FIXED_EPS:
            keys.only("vision.attention.layer_norm_epsilon", float(np.float32(EPS)))
        self.patch_dim = 3 * FRAMES * self.patch_size**2
        self.processor = self.open_processor(keys)
        vision = weights.scope("v")
        self.patch_embedding = patch_embedding(vision, self.dim, self.patch_size, n_frames=FRAMES)
        self.rotation = axial_rope(vision, self.dim // self.n_head)

    def open_processor(self, keys: Keys) -> ImageProcessor:
        return image_processor(keys, "Qwen2VLImageProcessor", self.patch_size, self.merge)

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return [self.around[0], sum(layout.n_tokens), self.around[1]]

    def token_grid(self, layout: Layout) -> tuple[int, int]:
        n_rows, n_cols = layout.views[0]
        return n_rows // self.merge, n_cols // self.merge


# --- checkpoint ---

SIZE_KEYS: dict[str, Key] = {
    "vision.block_count": u32("depth"),
    "vision.attention.head_count": u32("num_heads"),
    "vision.attention.layer_norm_epsilon": computed("f32", lambda config: EPS),
    "vision.patch_size": u32("patch_size"),
    "vision.spatial_merge_size": u32("spatial_merge_size"),
    "vision.image_size": computed("u32", lambda config: IMAGE_SIZE),
}
FRAME_TENSORS: dict[str, str | Source] = {
    "v.patch_embd": tensor("visual.patch_embed.proj", change=frame_of(0)),
    "v.patch_embd.weight.1": tensor("visual.patch_embed.proj.weight", change=frame_of(1)),
}
