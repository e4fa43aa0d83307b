"""Ultravox (Fixie 2024): a token stands for eight hidden states, through a gated projector; nothing is padded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..._native.graph import glu
from ...checkpoints.mapping import Fields, Source, computed, u32
from ...errors import UnsupportedError
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import RunStage, Stage
from .checkpoint import MediaCheckpoint
from .whisper import CONVOLUTIONS, KEYS, Whisper, encoder_tensors

EPS = 1e-6


class Ultravox(Whisper):
    """The language model, such as Llama 3, has no token of its own for sounds."""

    is_padded = False
    pad = "<|reserved_special_token_0|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        super().__init__(keys, weights)
        self.stack = keys.integer("audio.projector.stack_factor", low=1, high=64)
        projector = weights.scope("mm.a")
        self.n_in, n_mid = self.stack * self.dim, projector.n_rows("mlp.1.weight") // 2
        self.pre_norm = projector.norm("norm_pre", self.n_in, EPS)
        self.up, self.gate = projector.linears("mlp.1", self.n_in, [n_mid, n_mid])
        self.mid_norm = projector.norm("norm_mid", n_mid, EPS)
        self.down = projector.linear("mlp.2", n_mid, self.n_out)
        self.stages = {**self.stages, "projector": Stage(self.finish, patches_per_row=2 * self.stack)}

    def n_tokens(self, n_real: int) -> int:
        return -(-self.n_states(n_real) // self.stack)

    def encode(self, step: Step) -> Tensor:
        return self.norm(super().encode(step))

    def project(self, states: Floats, run: RunStage) -> Floats:
        padded = np.pad(states, ((0, -len(states) % self.stack), (0, 0)))
        return run("projector", padded.reshape(-1, self.n_in))

    def finish(self, step: Step) -> Tensor:
        x = self.pre_norm(step.features(self.n_in))
        return self.down(self.mid_norm(glu(self.gate(x), self.up(x), "silu")))


MODELS = {"ultravox": Ultravox}

# --- checkpoint ---


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    if not model.flag("projector_ln_mid", False) or model.text("projector_act", "swiglu") != "swiglu":
        raise UnsupportedError("[convert] unsupported projector: expected swiglu with projector_ln_mid")
    return {
        **encoder_tensors(model),
        "mm.a.norm_pre": "multi_modal_projector.ln_pre",
        "mm.a.mlp.1": "multi_modal_projector.linear_1",
        "mm.a.norm_mid": "multi_modal_projector.ln_mid",
        "mm.a.mlp.2": "multi_modal_projector.linear_2",
    }


HF = {
    "UltravoxModel": MediaCheckpoint(
        "ultravox",
        "audio_config",
        {"audio_tower.": ("audio_tower.",), "multi_modal_projector.": ("multi_modal_projector.",)},
        KEYS,
        _tensors,
        {
            "audio.projection_dim": computed("u32", lambda model: model.inner("text_config").integer("hidden_size")),
            "audio.projector.stack_factor": u32("stack_factor", default=8),
        },
        f16=CONVOLUTIONS,
    )
}
