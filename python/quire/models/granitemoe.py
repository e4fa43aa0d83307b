"""Granite 3 with experts (Granite team 2024): Llama's attention, four multipliers, an optional shared expert."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    Key,
    computed,
    factor,
    half,
    interleaved,
    tensor,
    u32,
)
from ..errors import LoadError, UnsupportedError
from ..nn import (
    ExpertConfig,
    Keys,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    experts_of,
    frequency_factors,
    rope_spec,
)
from .base import MAX_DIM, Decoder, DenseConfig, Layer
from .llama import Attention

ARCHES = ("granitemoe",)


class ScaledAttention(Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, scale: float) -> None:
        super().__init__(config, weights, layer, rotation)
        self.scale = scale or self.scale


class Block:
    """A block whose attention and MLP outputs are multiplied by ``scale`` before they are added."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention, mlp: Layer, scale: float) -> None:
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.norm("ffn_norm", config.dim, config.eps), mlp
        self.scale = scale

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step) * self.scale
        return x + self.mlp(self.ffn_norm(x)) * self.scale


class GraniteMoe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim)
        shared_dim = keys.integer("expert_shared_feed_forward_length", 0, high=MAX_DIM)
        self.embedding_scale = keys.number("embedding_scale", 0.0) or 1.0  # 0: not set
        self.logit_scale = keys.number("logit_scale")
        if self.logit_scale == 0:
            raise LoadError("[granitemoe] invalid logit_scale: 0")
        attention_scale = keys.number("attention.scale", 0.0)
        scale = keys.number("residual_scale", 0.0) or 1.0
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )

        def mlp(block: Weights) -> Layer:
            return experts_of(block, config.dim, experts, shared_dim)

        blocks = [
            Block(config, block, ScaledAttention(config, block, i, rotation, attention_scale), mlp(block), scale)
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens) * self.embedding_scale
        return self.logits(x, step) * (1 / self.logit_scale)


MODEL = GraniteMoe

# --- checkpoint ---

_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "embedding_scale": factor("embedding_multiplier", default=1.0),
    "residual_scale": factor("residual_multiplier", default=1.0),
    "logit_scale": factor("logits_scaling", default=1.0),
    "attention.scale": factor("attention_multiplier", default=1.0),
    "expert_count": u32("num_local_experts", default=8),
    "expert_used_count": u32("num_experts_per_tok", default=2),
}
_LAYER = "model.layers.{i}"
_MOE = f"{_LAYER}.block_sparse_moe"
_TENSORS = {
    **DECODER_TENSORS,
    "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=interleaved("num_attention_heads")),
    "blk.{i}.attn_k": tensor(
        f"{_LAYER}.self_attn.k_proj", change=interleaved("num_key_value_heads", "num_attention_heads")
    ),
    "blk.{i}.ffn_gate_inp": f"{_MOE}.router.layer",
    "blk.{i}.ffn_gate_exps": tensor(f"{_MOE}.input_linear", change=half(0)),
    "blk.{i}.ffn_up_exps": tensor(f"{_MOE}.input_linear", change=half(1)),
    "blk.{i}.ffn_down_exps": f"{_MOE}.output_linear",
}


def turned(which: int | None = None) -> Change:
    """Transpose each expert's matrix, or that of its first (0) or second (1) half of columns."""

    def change(x: Array, config: Fields) -> Array:
        n = x.shape[-1] // 2
        part = x if which is None else x[..., which * n : (which + 1) * n]
        transposed: Array = part.swapaxes(-1, -2).copy()
        return transposed

    return change


def _without_biases(config: Fields) -> None:
    for name in ("attention_bias", "mlp_bias"):
        if config.flag(name, False):
            raise UnsupportedError(f"[convert] unsupported '{name}': true")


_ARIA = f"{_LAYER}.mlp"
HF = {
    "GraniteMoeForCausalLM": Checkpoint(
        "granitemoe", _KEYS, _TENSORS, fixed={"hidden_act": SILU}, unused=("attention_bias",)
    ),
    "GraniteMoeSharedForCausalLM": Checkpoint(
        "granitemoe",
        {**_KEYS, "expert_shared_feed_forward_length": u32("shared_intermediate_size", default=0)},
        {
            **_TENSORS,
            "blk.{i}.ffn_gate_shexp": tensor(f"{_LAYER}.shared_mlp.input_linear", change=half(0)),
            "blk.{i}.ffn_up_shexp": tensor(f"{_LAYER}.shared_mlp.input_linear", change=half(1)),
            "blk.{i}.ffn_down_shexp": f"{_LAYER}.shared_mlp.output_linear",
        },
        fixed={"hidden_act": SILU},
        unused=("attention_bias",),
    ),
    # Aria (Rhymes AI 2024): no multipliers
    "AriaTextForCausalLM": Checkpoint(
        "granitemoe",
        {
            **DECODER_KEYS,
            "logit_scale": computed("f32", lambda config: 1.0),
            "expert_count": u32("moe_num_experts", default=8),
            "expert_used_count": u32("moe_topk", default=2),
            "expert_shared_feed_forward_length": computed(
                "u32",
                lambda config: config.integer("moe_num_shared_experts", 2) * config.integer("intermediate_size", 4096),
            ),
        },
        {
            **_TENSORS,
            "blk.{i}.ffn_gate_inp": f"{_ARIA}.router",
            "blk.{i}.ffn_gate_exps": tensor(f"{_ARIA}.experts.fc1", change=turned(0)),
            "blk.{i}.ffn_up_exps": tensor(f"{_ARIA}.experts.fc1", change=turned(1)),
            "blk.{i}.ffn_down_exps": tensor(f"{_ARIA}.experts.fc2", change=turned()),
            **{f"blk.{{i}}.ffn_{one}_shexp": f"{_ARIA}.shared_experts.{one}_proj" for one in ("gate", "up", "down")},
        },
        fixed={"hidden_act": SILU},
        checks=(_without_biases,),
    ),
}
