"""Granite 3 and 4, dense (Granite team 2024): Llama with four multipliers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..checkpoints.mapping import SILU, Checkpoint, Fields, Key, computed, f32, no_windows
from ..errors import LoadError, UnsupportedError
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig, Layer, Mixer

ARCHES = ("granite",)


class Attention(llama.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, scale: float) -> None:
        super().__init__(config, weights, layer, rotation)
        self.scale = scale or self.scale


class ScaledBlock(Block):
    """A block whose attention and MLP outputs are scaled before they are added."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer, scale: float) -> None:
        super().__init__(config, weights, attention, mlp)
        self.scale = scale

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step) * self.scale
        return x + self.mlp(self.ffn_norm(x)) * self.scale


@dataclass(frozen=True)
class Multipliers:
    """Granite's four multipliers."""

    embedding: float
    residual: float  # for attention and MLP outputs
    attention: float  # for scores; 0: the usual one
    logit: float  # logits are divided by it


class Granite(Decoder):
    """A multiplier of 0 means the default.  Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        keys.only("expert_count", 0)
        # llama.cpp's converter writes them for hybrid models that have attention in all layers.
        keys.only("expert_used_count", 0)
        keys.without_effect("expert_shared_feed_forward_length", "ssm.*")
        keys.only("rope.scaling.finetuned", True)  # false: without RoPE
        self.scales = scales = self.multipliers(keys, config)
        if scales.logit == 0:
            raise LoadError(f"[{keys.arch}] invalid logit_scale: 0")
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        blocks = [
            ScaledBlock(
                config,
                block,
                Attention(config, block, i, rotation, scales.attention),
                GatedMLP(block, config.dim, config.ffn_dim),
                scales.residual,
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    @staticmethod
    def multipliers(keys: Keys, config: DenseConfig) -> Multipliers:
        return Multipliers(
            embedding=keys.number("embedding_scale", 0.0) or 1.0,
            residual=keys.number("residual_scale", 0.0) or 1.0,
            attention=keys.number("attention.scale", 0.0),
            logit=keys.number("logit_scale", 1.0),
        )

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.scales.embedding, step) * (1.0 / self.scales.logit)


MODEL = Granite

# --- checkpoint ---

MULTIPLIERS = {
    "attention.scale": f32("attention_multiplier", default=1.0),
    "embedding_scale": f32("embedding_multiplier", default=1.0),
    "residual_scale": f32("residual_multiplier", default=1.0),
    "logit_scale": f32("logits_scaling", default=1.0),
}


def no_zeros(config: Fields) -> None:
    """Reject multipliers of 0, which files cannot express."""
    for name in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
        if config.number(name, 1.0) == 0:
            raise UnsupportedError(f"[convert] unsupported '{name}': 0")


def _with_mup(name: str, *others: str) -> Key:
    """Return a multiplier of TeleFLM: ``name``, divided by the other fields; 1 unless ``use_mup``."""

    def read(config: Fields) -> float:
        config.read((name, *others))
        if not config.flag("use_mup", False):
            return 1.0
        values = [config.number(each) for each in (name, *others)]
        if 0 in values:
            raise UnsupportedError(f"[convert] unsupported '{name}': 0")
        return values[0] / math.prod(values[1:])

    return computed("f32", read)


_GRANITE = Checkpoint(
    "granite",
    {**llama.KEYS, **MULTIPLIERS},
    llama.TENSORS,
    fixed={"hidden_act": SILU},
    checks=(no_windows, no_zeros),
    unused=("attention_bias", "mlp_bias"),
)
HF = {
    "GraniteForCausalLM": _GRANITE,
    # Two of the multipliers (Yao et al. 2023)
    "TeleFLMForCausalLM": replace(
        _GRANITE,
        keys={
            **llama.KEYS,
            "embedding_scale": _with_mup("input_mult"),
            "logit_scale": _with_mup("mup_scale_factor", "output_mult"),
        },
        checks=(no_windows,),
    ),
}
