"""HyperCLOVA X SEED Think (NAVER 2025): Granite with norms after attention and MLP (Kim et al. 2025)."""

from __future__ import annotations

from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, f32, no_windows, only_with, tensor
from ..errors import UnsupportedError
from ..nn import GatedMLP, Keys, Step, Tensor, Weights, frequency_factors, rope_spec
from . import granite, llama
from .base import Block, Decoder, DenseConfig
from .granite import MULTIPLIERS, Attention, no_zeros

ARCHES = ("hyperclovax",)


class PeriBlock(Block):
    """A block with norms before and, if the file has them, after attention and MLP, whose outputs are scaled."""

    def __init__(
        self, config: DenseConfig, weights: Weights, attention: Attention, mlp: GatedMLP, scale: float
    ) -> None:
        super().__init__(config, weights, attention, mlp)
        self.scale, is_peri = scale, weights.has("post_attention_norm.weight")
        self.after_attention = weights.norm("post_attention_norm", config.dim, config.eps) if is_peri else None
        self.after_mlp = weights.norm("post_ffw_norm", config.dim, config.eps) if is_peri else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.attention(self.attn_norm(x), step)
        x = x + (self.after_attention(y) if self.after_attention else y) * self.scale
        y = self.mlp(self.ffn_norm(x))
        return x + (self.after_mlp(y) if self.after_mlp else y) * self.scale


class HyperClovaX(Decoder):
    """Files store q and k interleaved, as for Llama, and Granite's divisor of the logits."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.scales = scales = granite.Granite.multipliers(keys, config)
        if scales.logit == 0:
            raise UnsupportedError(f"[{keys.arch}] invalid logit_scale: 0")
        factors = frequency_factors(weights, config.n_rot)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved", factors=factors)
        blocks = [
            PeriBlock(
                config,
                block,
                Attention(config, block, i, rotation, scales.attention),
                GatedMLP(block, config.dim, config.ffn_dim),
                scales.residual,
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        x = step.with_media(self.embedding(step.tokens) * self.scales.embedding)
        return self.logits(x, step) * (1.0 / self.scales.logit)


MODEL = HyperClovaX

# --- checkpoint ---


def _divisor(config: Fields) -> float:
    return 1.0 / config.number("logits_scaling", 1.0)


def _attention_scale(config: Fields) -> float | None:
    return config.number("attention_multiplier") if config.has("attention_multiplier") else None


_LAYER = "model.layers.{i}"
_NORM = only_with("use_post_norm", default=True)
HF = {
    "HyperCLOVAXForCausalLM": Checkpoint(
        "hyperclovax",
        {
            **llama.KEYS,
            **MULTIPLIERS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
            "attention.scale": computed("f32", _attention_scale),
            "logit_scale": computed("f32", _divisor),
        },
        {
            **llama.TENSORS,
            "blk.{i}.post_attention_norm": tensor(f"{_LAYER}.post_norm1", change=_NORM),
            "blk.{i}.post_ffw_norm": tensor(f"{_LAYER}.post_norm2", change=_NORM),
        },
        fixed={"hidden_act": SILU},
        checks=(no_zeros, no_windows),
        unused=("attention_bias", "mlp_bias"),
    )
}
