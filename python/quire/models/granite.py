"""Granite 3 and 4, dense (Granite team 2024): llama with four multipliers."""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoint import SILU, Checkpoint, Fields, f32, no_windows
from ..errors import LoadError, UnsupportedError
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig

ARCHES = ("granite",)


class Attention(llama.Attention):
    def __init__(self, c: DenseConfig, w: Weights, layer: int, rotation: RopeSpec, scale: float) -> None:
        super().__init__(c, w, layer, rotation)
        self.scale = scale or self.scale


class ScaledBlock(Block):
    """What each part adds is multiplied by a number."""

    def __init__(self, c: DenseConfig, w: Weights, attention: Attention, mlp: GatedMLP, scale: float) -> None:
        super().__init__(c, w, attention, mlp)
        self.scale = scale

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step) * self.scale
        return x + self.mlp(self.ffn_norm(x)) * self.scale


@dataclass(frozen=True)
class Multipliers:
    """Of embedded tokens, of what each part adds, of scores (0: as usual); logits are divided by the last."""

    embedding: float
    residual: float
    attention: float
    logit: float


class Granite(Decoder):
    """A multiplier of 0 says nothing.  Files store q and k interleaved, as llama's."""

    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        c = DenseConfig.read(m, n_vocab)
        m.only("expert_count", 0)
        m.only("rope.scaling.finetuned", True)  # false: no rotation
        self.scales = scales = self.multipliers(m, c)
        if scales.logit == 0:
            raise LoadError(f"[{m.arch}] logit_scale must not be 0")
        rotation = rope_spec(m, n_dims=c.n_rot, layout="interleaved", factors=frequency_factors(w, c.n_rot))
        blocks = [
            ScaledBlock(
                c, b, Attention(c, b, i, rotation, scales.attention), GatedMLP(b, c.dim, c.ffn_dim), scales.residual
            )
            for i, b in enumerate(w.blocks(c.n_layer))
        ]
        super().__init__(c, w, blocks)

    @staticmethod
    def multipliers(m: Keys, c: DenseConfig) -> Multipliers:
        return Multipliers(
            embedding=m.number("embedding_scale", 0.0) or 1.0,
            residual=m.number("residual_scale", 0.0) or 1.0,
            attention=m.number("attention.scale", 0.0),
            logit=m.number("logit_scale", 1.0),
        )

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.scales.embedding, step) * (1.0 / self.scales.logit)


MODEL = Granite
MULTIPLIERS = {
    "attention.scale": f32("attention_multiplier", default=1.0),
    "embedding_scale": f32("embedding_multiplier", default=1.0),
    "residual_scale": f32("residual_multiplier", default=1.0),
    "logit_scale": f32("logits_scaling", default=1.0),
}


def no_zeros(config: Fields) -> None:
    """In files, a multiplier of 0 means none."""
    for name in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
        if config.number(name, 1.0) == 0:
            raise UnsupportedError(f"[convert] '{name}' must not be 0")


HF = {
    "GraniteForCausalLM": Checkpoint(
        "granite",
        {**llama.KEYS, **MULTIPLIERS},
        llama.TENSORS,
        fixed={"hidden_act": SILU},
        checks=(no_windows, no_zeros),
        unused=("attention_bias", "mlp_bias"),
    )
}
