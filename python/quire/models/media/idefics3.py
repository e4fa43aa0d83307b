"""Idefics3 (Laurençon et al. 2024), SmolVLM (Marafioti et al. 2025): SigLIP over tiles and the whole image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt

import numpy as np

from ...checkpoints.mapping import Fields, Source, computed, f32, u32
from ...errors import LoadError
from ...media import Layout, View
from ...media.pixels import Floats
from ...media.processors.idefics3 import Idefics3 as Processor
from ...media.video import Video, in_words
from ...nn import Keys, Step, Tensor, Weights
from .base import Item, MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, activation_key, edge_of, image_processor, layer_tensors, text_width
from .grids import merged_rows
from .vit import VisionTransformer

AROUND = "<fake_token_around_image>"
# Frames a second that are read of video files, and how many at most; of long files, seconds left out at both ends.
VIDEO_RATE, VIDEO_FRAMES, SKIPPED = 1, 64, 1


class Idefics3(MediaModel):
    pad = "<image>"
    video_pad = "<image>"
    template_text = "<image>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.encoder = vision = VisionTransformer(keys, weights.scope("v"), gelu="gelu_tanh")
        self.merge = keys.integer("vision.projector.scale_factor", 2, low=1, high=64)
        self.n_out = keys.integer("vision.projection_dim", low=1, high=1 << 16)
        tile = keys.integer("vision.image_size", low=1, high=8192)
        n_tiles = keys.integer("vision.preproc_max_tiles", 0)
        self.side, self.places = tile // vision.patch_size, isqrt(len(vision.positions))
        if self.places**2 != len(vision.positions) or not self.side or self.side % self.merge:
            raise LoadError(
                f"[clip] image_size {tile}, patch_size {vision.patch_size}, scale_factor {self.merge} and "
                f"{len(vision.positions)} positions do not fit together"
            )
        settings = {
            "size": {"longest_edge": keys.integer("vision.preproc_image_size", tile, low=1, high=1 << 16)},
            "max_image_size": {"longest_edge": tile},
            "do_image_splitting": n_tiles != 1,
        }
        self.processor = image_processor(keys, "Idefics3ImageProcessor", vision.patch_size, self.merge, settings)
        assert isinstance(self.processor, Processor)
        self.frames = self.processor
        self.patch_dim = vision.patch_dim
        self.projection = weights.linear("mm.model.fc", vision.dim * self.merge**2, self.n_out)
        self.stages = {
            "encoder": Stage(vision.encode, n_layer=vision.n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        parts: list[str | int] = []
        n_tokens = iter(layout.n_tokens)
        for row in range(layout.tile_rows):
            for col in range(layout.tile_cols):
                parts += [f"{AROUND}<row_{row + 1}_col_{col + 1}>", next(n_tokens)]
            parts.append("\n")
        return [*parts, "\n" if parts else "", f"{AROUND}<global-img>", next(n_tokens), AROUND]

    def frames_of(self, n_frames: int, rate: float) -> Sequence[int]:
        seconds = n_frames / rate
        n, first, last = max(min(round(VIDEO_RATE * seconds), VIDEO_FRAMES), 1), 0, n_frames - 1
        if seconds - 2 * SKIPPED > VIDEO_FRAMES * VIDEO_RATE:
            first, last = int(SKIPPED * rate), min(int(n_frames - SKIPPED * rate), last)
        found: list[int] = np.unique(np.linspace(first, last, n, dtype=int)).tolist()
        return found

    def video(self, video: Video) -> Item:
        frame = replace(self.frames, longest_edge=self.frames.tile, splits=False)
        n = frame.layout(*video.frames.shape[1:3]).n_tokens[0]
        minutes, seconds = divmod(int(video.times[-1] if video.duration is None else video.duration), 60)
        length = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
        markup: list[str | int] = [
            f"You are provided the following series of {in_words(len(video.times))} frames from a {length} "
            "[H:MM:SS] video.\n"
        ]
        for time in video.times:
            minutes, seconds = divmod(int(time), 60)
            markup[-1] = f"{markup[-1]}\nFrame from {minutes:02d}:{seconds:02d}:{AROUND}<global-img>"
            markup += [n, AROUND]
        markup[-1] = f"{AROUND}\n\n"
        views = (frame.process(picture).views[0] for picture in video.frames)
        return Item(lambda: views, self.side**2, n * len(video.times), markup, None)

    def rows(self, view: View, run: RunStage) -> Floats:
        # A smaller grid of patches spreads over the table, at the nearest place before each patch.
        rows, cols = (np.arange(n) * self.places // n for n in (view.n_rows, view.n_cols))
        positions = self.encoder.positions[(rows[:, None] * self.places + cols).ravel()]
        states = run("encoder", self.encoder.features(view.patches, positions))
        return run("projector", merged_rows(states, view.n_rows, view.n_cols, self.merge))

    def project(self, step: Step) -> Tensor:
        return self.projection(step.features(self.encoder.dim * self.merge**2))


MODELS = {"idefics3": Idefics3}

# --- checkpoint ---

_LAYER = "vision_model.encoder.layers.{i}."


def _tensors(config: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": "vision_model.embeddings.patch_embedding",
        "v.position_embd": "vision_model.embeddings.position_embedding",
        **layer_tensors(_LAYER),
        "v.post_ln": "vision_model.post_layernorm",
        "mm.model.fc": "connector.modality_projection.proj",
    }


_IDEFICS3 = MediaCheckpoint(
    "idefics3",
    "vision_config",
    {"vision_model.": ("model.vision_model.", "vision_model."), "connector.": ("model.connector.", "connector.")},
    {
        "use_gelu": activation_key("gelu_pytorch_tanh"),
        "vision.embedding_length": u32("hidden_size", default=1152),
        "vision.block_count": u32("num_hidden_layers", default=12),
        "vision.feed_forward_length": u32("intermediate_size", default=3072),
        "vision.attention.head_count": u32("num_attention_heads", default=16),
        "vision.attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-6),
        "vision.patch_size": u32("patch_size", default=32),
    },
    _tensors,
    whole_keys={
        "vision.projection_dim": text_width,
        "vision.projector.scale_factor": u32("scale_factor", default=2),
    },
    settings={
        "vision.image_size": edge_of("max_image_size", "longest_edge", 364),
        "vision.preproc_image_size": edge_of("size", "longest_edge", 4 * 364),
        # A key of other families: 1 means that images are not cut.
        "vision.preproc_max_tiles": computed(
            "u32", lambda settings: None if settings.flag("do_image_splitting", True) else 1
        ),
    },
    limits_pixels=False,
    fixed={"resample": 1},
)
HF = {"Idefics3ForConditionalGeneration": _IDEFICS3, "SmolVLMForConditionalGeneration": _IDEFICS3}
