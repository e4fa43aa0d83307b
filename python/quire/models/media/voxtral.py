"""Voxtral (Liu et al. 2025): a token stands for four hidden states; sounds are padded to 30 seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...checkpoints.mapping import Fields, Source, computed
from ...media import Layout
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights, activate
from .base import RunStage, Stage
from .checkpoint import MediaCheckpoint
from .whisper import CONVOLUTIONS, KEYS, WINDOW, Whisper, encoder_tensors


class Voxtral(Whisper):
    pad = "[AUDIO]"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        super().__init__(keys, weights)
        self.stack = keys.integer("audio.projector.stack_factor", low=1, high=64)
        projector = weights.scope("mm.a.mlp")
        self.up = projector.linear("1", self.stack * self.dim, self.n_out)
        self.down = projector.linear("2", self.n_out, self.n_out)
        self.stages = {**self.stages, "projector": Stage(self.finish, patches_per_row=2 * self.stack)}

    def n_states(self, n_real: int) -> int:
        return WINDOW // 2

    def n_tokens(self, n_real: int) -> int:
        return WINDOW // 2 // self.stack

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["[BEGIN_AUDIO]", sum(layout.n_tokens)]

    def encode(self, step: Step) -> Tensor:
        return self.norm(super().encode(step))

    def project(self, states: Floats, run: RunStage) -> Floats:
        n = WINDOW // 2 // self.stack
        return run("projector", states[: n * self.stack].reshape(n, -1))

    def finish(self, step: Step) -> Tensor:
        return self.down(activate(self.up(step.features(self.stack * self.dim)), "gelu"))


MODELS = {"voxtral": Voxtral}

# --- checkpoint ---


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    projector = {f"mm.a.mlp.{i}": f"multi_modal_projector.linear_{i}" for i in (1, 2)}
    return {**encoder_tensors(model), **projector}


def _stack_factor(config: Fields) -> int:
    return config.integer("intermediate_size", 5120) // config.integer("hidden_size", 1280, low=1)


HF = {
    "VoxtralForConditionalGeneration": MediaCheckpoint(
        "voxtral",
        "audio_config",
        {
            "audio_tower.": ("model.audio_tower.", "audio_tower."),
            "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
        },
        {**KEYS, "audio.projector.stack_factor": computed("u32", _stack_factor)},
        _tensors,
        {
            "audio.projection_dim": computed(
                "u32", lambda model: model.inner("text_config").integer("hidden_size", 3072)
            )
        },
        f16=CONVOLUTIONS,
    )
}
