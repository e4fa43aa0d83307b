"""Granite 4 hybrid (IBM 2025): Mamba 2 in most layers, attention in some, experts beside a shared one, four scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoint import DECODER_KEYS, DECODER_TENSORS, SILU, Change, Checkpoint, Fields, factor, made, taken, u32
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, MoE, MoeSpec, Step, Tensor, Weights
from .base import MAX_DIM, MAX_HEADS, Decoder, DenseConfig, Layer, Mixer, by_layer
from .mamba2 import UNLIMITED, Attention, Mamba2Mixer, StateSpace, mixer_tensors

if TYPE_CHECKING:
    from ..checkpoint import Array

ARCHES = ("granitehybrid",)


class Experts:
    """Those that are chosen, and one that every token goes through."""

    def __init__(self, w: Weights, c: DenseConfig, n_expert: int, spec: MoeSpec, shared_dim: int) -> None:
        self.chosen = MoE(w, c.dim, c.ffn_dim, n_expert, spec)
        self.gate = w.linear("ffn_gate_shexp", c.dim, shared_dim)
        self.up = w.linear("ffn_up_shexp", c.dim, shared_dim)
        self.down = w.linear("ffn_down_shexp", shared_dim, c.dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.chosen(x) + self.down(graph.glu(self.gate(x), self.up(x), "silu"))


class Block:
    def __init__(self, c: DenseConfig, w: Weights, mixer: Mixer, mlp: Layer, residual: float) -> None:
        self.attn_norm, self.mixer = w.norm("attn_norm", c.dim, c.eps), mixer
        self.ffn_norm, self.mlp = w.norm("ffn_norm", c.dim, c.eps), mlp
        self.residual = residual

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.mixer(self.attn_norm(x), step) * self.residual
        return x + self.mlp(self.ffn_norm(x)) * self.residual


class GraniteHybrid(Decoder):
    """The number of heads of k and v is 0 in layers with a state.  A scale of 0 says nothing."""

    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        self.attends, n_kv_head = by_layer(m, "attention.head_count_kv", high=MAX_HEADS)
        c = DenseConfig.read(m, n_vocab, n_kv_head=n_kv_head)
        self.sizes = StateSpace.read(m)
        self.embedding_scale = m.number("embedding_scale", 1.0) or 1.0
        self.logit_scale = m.number("logit_scale", 1.0) or 1.0
        residual = m.number("residual_scale", 1.0) or 1.0
        scale = m.number("attention.scale", 0.0)
        m.only("rope.scaling.finetuned", False)  # whether heads are rotated
        m.without_effect("rope.freq_base", "rope.scaling.type", "rope.scaling.factor")
        n_expert = m.integer("expert_count", 0, high=4096)
        n_used = m.integer("expert_used_count", 0, low=min(n_expert, 1), high=4096)
        shared_dim = m.integer("expert_shared_feed_forward_length", 0, high=MAX_DIM)
        blocks = []
        for i, b in enumerate(w.blocks(c.n_layer)):
            mixer = Attention(c, b, i, scale) if self.attends[i] else Mamba2Mixer(b, c.dim, i, self.sizes, c.eps)
            mlp: Layer = (
                Experts(b, c, n_expert, MoeSpec(n_used=n_used), shared_dim)
                if n_expert
                else GatedMLP(b, c.dim, c.ffn_dim)
            )
            blocks.append(Block(c, b, mixer, mlp, residual))
        super().__init__(c, w, blocks)

    def cache(self) -> list[CacheSpec]:
        attention = self.config.cache()
        return [spec if a else self.sizes.cache() for a, spec in zip(self.attends, attention, strict=True)]

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.embedding_scale, step) * (1 / self.logit_scale)


MODEL = GraniteHybrid


def _kv_heads(config: Fields) -> list[int]:
    n_layer, kinds = config.integer("num_hidden_layers"), config.items("layer_types")
    attention, state = {"attention", "full_attention"}, {"mamba", "linear_attention"}
    if kinds and (len(kinds) != n_layer or not set(map(str, kinds)) <= attention | state):
        raise UnsupportedError("[convert] 'layer_types' must be attention or mamba for each layer")
    n_kv_head = config.integer("num_key_value_heads", config.integer("num_attention_heads"), low=1)
    return [n_kv_head if kind in attention else 0 for kind in kinds] or [0] * n_layer


def _has_experts(config: Fields) -> None:
    if not config.integer("num_local_experts", 8):
        raise UnsupportedError("[convert] 'num_local_experts' must be above 0: dense checkpoints are not converted")


def _inner(config: Fields) -> int:
    return config.integer("mamba_expand", 2) * config.integer("hidden_size")


def _sizes_agree(config: Fields) -> None:
    heads = config.integer("mamba_n_heads", 128, low=1)
    if config.value("mamba_d_head") not in (None, "auto", _inner(config) // heads):
        raise UnsupportedError("[convert] 'mamba_d_head' must be mamba_expand * hidden_size / mamba_n_heads")


def _half(i: int) -> Change:
    """Of gate and up in one tensor."""

    def change(x: Array, config: Fields) -> Array:
        n = x.shape[-2] // 2
        half: Array = x[..., i * n : (i + 1) * n, :].copy()
        return half

    return change


_LAYER = "model.layers.{i}"
_MOE = f"{_LAYER}.block_sparse_moe"
HF = {
    "GraniteMoeHybridForCausalLM": Checkpoint(
        "granitehybrid",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": made("u32[]", _kv_heads),
            "feed_forward_length": u32("intermediate_size", default=11008),
            "attention.scale": factor("attention_multiplier", default=1.0),
            "embedding_scale": factor("embedding_multiplier", default=1.0),
            "residual_scale": factor("residual_multiplier", default=1.0),
            "logit_scale": factor("logits_scaling", default=1.0),
            "expert_count": u32("num_local_experts", default=8),
            "expert_used_count": u32("num_experts_per_tok", default=2),
            "expert_shared_feed_forward_length": u32("shared_intermediate_size", default=1024),
            "rope.scaling.finetuned": made("bool", lambda config: False),
            "ssm.conv_kernel": u32("mamba_d_conv", default=4),
            "ssm.inner_size": made("u32", _inner),
            "ssm.state_size": u32("mamba_d_state", default=256),
            "ssm.time_step_rank": u32("mamba_n_heads", default=128),
            "ssm.group_count": u32("mamba_n_groups", default=1),
        },
        {
            **DECODER_TENSORS,
            **mixer_tensors(f"{_LAYER}.mamba", "mamba_n_groups", 1),
            "blk.{i}.ffn_gate_inp": f"{_MOE}.router.layer",
            "blk.{i}.ffn_gate_exps": taken(f"{_MOE}.input_linear", change=_half(0)),
            "blk.{i}.ffn_up_exps": taken(f"{_MOE}.input_linear", change=_half(1)),
            "blk.{i}.ffn_down_exps": f"{_MOE}.output_linear",
            "blk.{i}.ffn_gate_shexp": taken(f"{_LAYER}.shared_mlp.input_linear", change=_half(0)),
            "blk.{i}.ffn_up_shexp": taken(f"{_LAYER}.shared_mlp.input_linear", change=_half(1)),
            "blk.{i}.ffn_down_shexp": f"{_LAYER}.shared_mlp.output_linear",
        },
        fixed={"hidden_act": SILU, "time_step_limit": UNLIMITED, "position_embedding_type": ("nope", None)},
        checks=(_has_experts, _sizes_agree),
        rope=None,
        unused=(
            "attention_bias", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "rope_theta", "rope_scaling",
            "rope_parameters", "init_method", "normalization_function",
        ),
    )
}  # fmt: skip
