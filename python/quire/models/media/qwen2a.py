"""Qwen2-Audio (Chu et al. 2024): pairs of hidden states are averaged, normalized and projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...checkpoints.mapping import Fields, Source, computed
from ...media import Layout
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import RunStage, Stage
from .checkpoint import MediaCheckpoint
from .whisper import CONVOLUTIONS, KEYS, Whisper, encoder_tensors


class Qwen2Audio(Whisper):
    """The encoder attends to the real frames only."""

    pad = "<|AUDIO|>"
    template_text = "<|audio_bos|><|AUDIO|><|audio_eos|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        super().__init__(keys, weights)
        self.projection = weights.linear("mm.a.fc", self.dim, self.n_out, bias=True)
        self.stages = {**self.stages, "projector": Stage(self.finish, patches_per_row=4)}

    def n_tokens(self, n_real: int) -> int:
        return self.n_states(n_real) // 2

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|audio_bos|>", sum(layout.n_tokens), "<|audio_eos|>"]

    def project(self, states: Floats, run: RunStage) -> Floats:
        pairs = states[: len(states) // 2 * 2].reshape(-1, 2, self.dim)
        return run("projector", np.mean(pairs, axis=1))

    def finish(self, step: Step) -> Tensor:
        return self.projection(self.norm(step.features(self.dim)))


MODELS = {"qwen2a": Qwen2Audio}

# --- checkpoint ---


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    return {**encoder_tensors(model), "mm.a.fc": "multi_modal_projector.linear"}


HF = {
    "Qwen2AudioForConditionalGeneration": MediaCheckpoint(
        "qwen2a",
        "audio_config",
        {
            "audio_tower.": ("model.audio_tower.", "audio_tower."),
            "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
        },
        KEYS,
        _tensors,
        {
            "audio.projection_dim": computed(
                "u32", lambda model: model.inner("text_config").integer("hidden_size", 4096)
            )
        },
        f16=CONVOLUTIONS,
    )
}
