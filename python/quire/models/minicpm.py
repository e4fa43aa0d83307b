"""MiniCPM (Hu et al. 2024): Llama with multipliers that depend on depth and width."""

from __future__ import annotations

from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, no_windows
from ..errors import UnsupportedError
from ..nn import Keys
from . import llama
from .base import DenseConfig
from .granite import Granite, Multipliers

ARCHES = ("minicpm",)
BASE_DIM = 256  # default width of the base model that logits are scaled by


class MiniCPM(Granite):
    @staticmethod
    def multipliers(keys: Keys, config: DenseConfig) -> Multipliers:
        """Read the multipliers; old files lack their keys, and 0 means 1."""
        return Multipliers(
            embedding=keys.number("embedding_scale", 12.0) or 1.0,
            residual=keys.number("residual_scale", 1.4 / config.n_layer**0.5) or 1.0,
            attention=0.0,
            logit=keys.number("logit_scale", config.dim / BASE_DIM),
        )


MODEL = MiniCPM

# --- checkpoint ---


def _not_zero(config: Fields, name: str) -> float:
    if (value := config.number(name, 1.0)) == 0:
        raise UnsupportedError(f"[convert] unsupported '{name}': 0")
    return value


def _residual(config: Fields) -> float:
    return _not_zero(config, "scale_depth") / float(config.integer("num_hidden_layers", low=1) ** 0.5)


def _embedding(config: Fields) -> float:
    return _not_zero(config, "scale_emb")


def _logit(config: Fields) -> float:
    return config.integer("hidden_size", low=1) / config.integer("dim_model_base", 1, low=1)


def _is_dense(config: Fields) -> None:
    if config.integer("num_experts", 0):
        raise UnsupportedError(f"[convert] unsupported 'num_experts': {config.integer('num_experts')} (expected 0)")


HF = {
    "MiniCPMForCausalLM": Checkpoint(
        "minicpm",
        {
            **llama.KEYS,
            "embedding_scale": computed("f32", _embedding),
            "residual_scale": computed("f32", _residual),
            "logit_scale": computed("f32", _logit),
        },
        llama.TENSORS,
        fixed={"hidden_act": SILU, "attention_bias": (False,)},
        checks=(no_windows, _is_dense),
        tied=True,
    )
}
