"""Qwen2.5-Omni (Xu et al. 2025): images as Qwen2.5-VL sees them, sounds in pieces of 2 seconds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...checkpoints.mapping import Fields, Source, computed, f32, tensor
from ...errors import UnsupportedError
from ...media import View
from ...media.pixels import Floats
from ...nn import Keys, Weights
from .base import RunStage, Stage
from .checkpoint import MediaCheckpoint
from .qwen2a import Qwen2Audio
from .qwen2vl import HF as QWEN2VL
from .qwen2vl import Qwen25Vl
from .qwen3a import sinusoids
from .whisper import CONVOLUTIONS, KEYS, SoundWindow, encoder_tensors, frames_under

# Frames that are convolved together, and whose states attend to each other.
CHUNK = 200


class Qwen25OmniImages(Qwen25Vl):
    pad = "<|IMAGE|>"
    around = ("<|vision_bos|>", "<|vision_eos|>")
    video_pad = ""  # TMRoPE interleaves a video with its sound


class Qwen25OmniAudio(Qwen2Audio):
    """A window of Whisper's length is a number of whole chunks."""

    def __init__(self, keys: Keys, weights: Weights) -> None:
        super().__init__(keys, weights)
        n_layer = self.stages["encoder"].n_layer
        encoder = Stage(self.encode, patches_per_row=2, n_layer=n_layer, rows_per_sequence=CHUNK // 2)
        self.stages = {**self.stages, "encoder": encoder}

    def rows(self, view: View, run: RunStage) -> Floats:
        assert isinstance(view, SoundWindow)
        ends = [min(begin + CHUNK, view.n_real) for begin in range(0, view.n_real, CHUNK)]
        lengths = np.diff(ends, prepend=0)
        chunks = np.split(view.patches[: view.n_real], ends[:-1])
        inputs = [frames_under(chunk, 1, len(chunk)) for chunk in chunks]
        frames = np.split(run("convolution", np.concatenate(inputs)), ends[:-1])
        n_states = (-(-lengths // 2)).tolist()
        pairs = [frames_under(chunk, 2, n) for chunk, n in zip(frames, n_states, strict=True)]
        return self.project(run("encoder", np.concatenate(pairs), None, n_states), run)


MODELS = {"qwen2.5o": (Qwen25OmniImages, Qwen25OmniAudio)}

# --- checkpoint ---


def _image_tensors(model: Fields) -> Mapping[str, str | Source]:
    table = dict(_QWEN25VL.tensors(model))
    return table | {f"v.blk.{{i}}.attn_{name}": f"visual.blocks.{{i}}.attn.{name}" for name in "qkv"}


def _audio_tensors(model: Fields) -> Mapping[str, str | Source]:
    if (n := model.inner("audio_config").integer("n_window", CHUNK // 2)) != CHUNK // 2:
        raise UnsupportedError(f"[convert] unsupported 'n_window': {n} (expected {CHUNK // 2})")
    table = {name: source for name, source in encoder_tensors(model).items() if name != "a.position_embd"}
    return table | {
        "a.position_embd.weight": tensor("audio_tower.ln_post.bias", change=sinusoids),
        "a.post_ln": "audio_tower.ln_post",
        "mm.a.fc": "audio_tower.proj",
    }


_QWEN25VL = QWEN2VL["Qwen2_5_VLForConditionalGeneration"]
_CHECKPOINT = (
    MediaCheckpoint(
        "qwen2.5o",
        "vision_config",
        {"visual.": ("thinker.visual.", "model.visual.", "visual.")},
        {name: key for name, key in _QWEN25VL.keys.items() if name != "vision.tokens_per_second"},
        _image_tensors,
        whole_keys={"vision.tokens_per_second": f32("position_id_per_seconds", default=25.0)},
    ),
    MediaCheckpoint(
        "qwen2.5o",
        "audio_config",
        {"audio_tower.": ("thinker.audio_tower.", "model.audio_tower.", "audio_tower.")},
        KEYS,
        _audio_tensors,
        whole_keys={
            "audio.projection_dim": computed(
                "u32", lambda model: model.inner("audio_config").integer("output_dim", 3584)
            )
        },
        unused=("audio_bos_eos_token.weight",),  # transformers does not use it, either
        f16=CONVOLUTIONS,
    ),
)
HF = {
    "Qwen2_5OmniForConditionalGeneration": _CHECKPOINT,
    "Qwen2_5OmniModel": _CHECKPOINT,
    "Qwen2_5OmniThinkerForConditionalGeneration": _CHECKPOINT,
}
