"""The encoders of Qwen's models: pairs of frames, RoPE by row and column, tokens of merged patches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ...checkpoints.mapping import Fields, Source, computed, tensor, u32
from ...checkpoints.mapping.keys import Key
from ...errors import LoadError
from ...media import ImageProcessor, Layout, View
from ...media.pixels import patches_of, resize
from ...media.processors.qwen_vl import QwenVl as Processor
from ...media.processors.qwen_vl import smart_resize
from ...media.video import FRAME_RATE, MAX_FRAMES, Video
from ...nn import Keys, Weights
from .base import Item, MediaModel
from .checkpoint import frame_of, image_processor
from .vit import axial_rope, patch_embedding

__all__ = [
    "EPS",
    "FRAMES",
    "FRAME_TENSORS",
    "MIN_FRAMES",
    "SIZE_KEYS",
    "VIDEO_KEYS",
    "QwenVl",
]

EPS = 1e-6  # transformers does not read it from the configuration
FRAMES = 2
MIN_FRAMES = 4  # that are read of a file, if it has them
IMAGE_SIZE = 560  # required by llama.cpp, without effect
SIZES = ("embedding_length", "block_count", "attention.head_count", "patch_size", "projection_dim")


class QwenVl(MediaModel):
    pad: str = "<|image_pad|>"
    around: tuple[str, str] = ("<|vision_start|>", "<|vision_end|>")
    FIXED_EPS: ClassVar[bool] = True
    # The pixels of a video's frames: of each, or (Qwen3-VL) of all of them together.
    VIDEO_LIMITS: ClassVar[tuple[int, int]] = (128 * 28 * 28, 768 * 28 * 28)
    video_pad = "<|video_pad|>"

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

        self.video_limits = (
            keys.integer("vision.video_min_pixels", self.VIDEO_LIMITS[0], low=1),
            keys.integer("vision.video_max_pixels", self.VIDEO_LIMITS[1], low=1),
        )

    def frames_of(self, n_frames: int, rate: float) -> Sequence[int]:
        most = min(MAX_FRAMES, n_frames) // FRAMES * FRAMES
        n = int(min(max(n_frames / rate * FRAME_RATE, MIN_FRAMES), most)) // FRAMES * FRAMES
        return [int(i * n_frames / n) for i in range(n)] if n else range(n_frames)

    def frame_size(self, n_frames: int, height: int, width: int) -> tuple[int, int]:
        """Return the size that frames of a video are resized to, in pixels."""
        return smart_resize(height, width, self.patch_size * self.merge, *self.video_limits)

    def video(self, video: Video) -> Item:
        n_frames, height, width = video.frames.shape[:3]
        size = self.frame_size(n_frames, height, width)
        n_rows, n_cols = (side // self.patch_size for side in size)
        n_pairs, n_tokens = -(-n_frames // FRAMES), n_rows * n_cols // self.merge**2
        markup = self.video_markup(video, n_pairs, n_tokens)
        grid, steps = (n_rows // self.merge, n_cols // self.merge), self.video_steps(video, n_pairs)
        views = partial(self.video_views, video, size)
        return Item(views, n_rows * n_cols, n_pairs * n_tokens, markup, grid, steps, self.around)

    def video_markup(self, video: Video, n_pairs: int, n_tokens: int) -> Sequence[str | int]:
        return [self.around[0], n_pairs * n_tokens, self.around[1]]

    def video_steps(self, video: Video, n_pairs: int) -> Sequence[int]:
        return range(n_pairs)

    def video_views(self, video: Video, size: tuple[int, int]) -> Iterator[View]:
        """Return a view of each pair of frames; the last frame is repeated if it has no partner."""
        processor = self.processor
        assert isinstance(processor, Processor)
        n_rows, n_cols = (side // self.patch_size for side in size)
        last = len(video.frames) - 1
        for i in range(0, len(video.frames), FRAMES):
            frames = [
                patches_of(
                    processor.normalization(resize(video.frames[min(k, last)], *size, processor.resample)),
                    self.patch_size, merge=self.merge,
                ).reshape(n_rows * n_cols, 3, 1, -1)
                for k in range(i, i + FRAMES)
            ]  # fmt: skip
            yield View(np.concatenate(frames, axis=2).reshape(n_rows * n_cols, -1), n_rows, n_cols)

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


def _video_limit(edge: str, old: str) -> Key:
    """Return the key of a limit in video_preprocessor_config.json, which is left out where that has none."""

    def read(settings: Fields) -> int | None:
        size = settings.value("size")
        found = settings.value(old) or (size.get(edge) if isinstance(size, Mapping) else None)
        return found if isinstance(found, int) else None

    return computed("u32", read)


VIDEO_KEYS: dict[str, Key] = {
    "vision.video_min_pixels": _video_limit("shortest_edge", "min_pixels"),
    "vision.video_max_pixels": _video_limit("longest_edge", "max_pixels"),
}
