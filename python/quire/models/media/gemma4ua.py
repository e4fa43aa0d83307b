"""Sounds of Gemma 4 12B (Google 2026): no encoder, a product of the samples of each 40 milliseconds instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checkpoints.mapping import Fields, computed, f32, u32
from ...errors import RequestError
from ...media import Layout, View
from ...media.audio import AudioFeatures, FeatureExtractor, Samples
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights, unit_norm
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint
from .gemma4 import text_width

WINDOW = 750  # tokens that are computed together


@dataclass(frozen=True)
class RawFrames(FeatureExtractor):
    """Frames are ``n_mels`` samples; the last one ends in silence."""

    def n_frames(self, n_samples: int) -> int:
        return -(-n_samples // self.n_mels)

    def extract(self, samples: Samples, length: int = 0) -> AudioFeatures:
        n = self.n_frames(max(len(samples), length))
        padded = np.pad(samples, (0, n * self.n_mels - len(samples)))
        return AudioFeatures(padded.reshape(n, self.n_mels), self.n_frames(len(samples)))


class Gemma4UnifiedAudio(MediaModel):
    kind = "audio"
    pad = "<|audio|>"
    template_text = "<|audio|>"
    processor: RawFrames

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.patch_dim, self.n_out = (
            keys.integer(f"audio.{name}", low=1, high=1 << 16) for name in ("embedding_length", "projection_dim")
        )
        self.eps = keys.number("audio.attention.layer_norm_epsilon")
        for name in ("block_count", "feed_forward_length", "attention.head_count"):
            keys.only(f"audio.{name}", 0)
        keys.without_effect("audio.num_mel_bins")
        self.processor = RawFrames(self.patch_dim)
        self.projection = weights.linear("mm.a.input_projection", self.patch_dim, self.n_out)
        self.stages = {"projector": Stage(self.project)}

    def layout(self, data: npt.NDArray[Any]) -> Layout:
        n = self.processor.n_frames(len(data))
        windows = tuple(min(n - begin, WINDOW) for begin in range(0, n, WINDOW))
        if not windows:
            raise RequestError("the audio has 0 samples: it is too short for the model")
        return Layout(tuple((each, 1) for each in windows), 0, 0, windows)

    def views(self, data: npt.NDArray[Any]) -> list[View]:
        frames = self.processor.extract(data.astype(np.float32, copy=False)).frames
        return [View(piece, len(piece), 1) for piece in np.split(frames, range(WINDOW, len(frames), WINDOW))]

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|audio>", sum(layout.n_tokens), "<audio|>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        return run("projector", view.patches)

    def project(self, step: Step) -> Tensor:
        return self.projection(unit_norm(step.features(self.patch_dim), self.eps))


MODELS = {"gemma4ua": Gemma4UnifiedAudio}

# --- checkpoint ---


def _none(config: Fields) -> int:
    return 0


HF = {
    "Gemma4UnifiedForConditionalGeneration": MediaCheckpoint(
        "gemma4ua",
        "audio_config",
        {"embed_audio.": ("model.embed_audio.", "embed_audio.")},
        {
            "audio.embedding_length": u32("audio_embed_dim", default=640),
            "audio.block_count": computed("u32", _none),
            "audio.feed_forward_length": computed("u32", _none),
            "audio.attention.head_count": computed("u32", _none),
            "audio.attention.layer_norm_epsilon": f32("rms_norm_eps", default=1e-6),
            "audio.num_mel_bins": computed("u32", lambda config: 128),  # llama.cpp wants some, and does not use them
        },
        lambda model: {"mm.a.input_projection": "embed_audio.embedding_projection"},
        whole_keys={"audio.projection_dim": computed("u32", text_width)},
    )
}
