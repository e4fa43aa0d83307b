"""Ling 3 (Ant Group 2026): Kimi Linear's layers with bounded decays; latent attention with RoPE, gated by head."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    Array,
    Checkpoint,
    Entry,
    Fields,
    Source,
    Target,
    computed,
    f32,
    factor,
    flag,
    layers_of_type,
    n_dense,
    tensor,
    u32,
)
from ..errors import LoadError, UnsupportedError
from ..nn import ROUTING, Keys, LatentAttention, RopeSpec, Tensor, Weights, latent_rope
from . import deepseek2, kimi_linear
from .bailingmoe2 import shared_experts
from .base import Layer, layers_left_out
from .deepseek2 import LATENT_KEYS, LATENT_TENSORS, latent_eps, q_rank

ARCHES = ("bailingmoe3",)


class DeltaAttention(kimi_linear.DeltaAttention):
    """Decays are ``exp(bound * sigmoid(a * x))``, with a negative bound."""

    bound = 0.0

    def product_of_two(self, name: str, dim: int, weights: Weights) -> Layer:
        return weights.linear(f"{name}_a", dim, self.n_head * self.size)

    def decay(self, x: Tensor) -> Tensor:
        rate = graph.add_weight(self.f(x), self.dt_bias).heads(self.n_head)
        return graph.sigmoid(graph.multiply_weight(rate, self.a)) * self.bound


class GatedLatentAttention(LatentAttention):
    """Multiplies the output of each head by a sigmoid."""

    gate: Layer

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        return graph.multiply_broadcast(y, graph.sigmoid(self.gate(x)).heads(self.sizes.n_head)).merge_heads()


class BailingMoe3(kimi_linear.KimiLinear):
    delta, latent, reads = DeltaAttention, GatedLatentAttention, ROUTING

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        keys.only("kda.safe_gate", True)
        keys.only("swiglu_clamp_exp", 0.0)
        keys.only("swiglu_clamp_shexp", 0.0)
        keys.without_effect("expert_shared_feed_forward_length")
        if not (bound := keys.number("kda.gate_lower_bound")) < 0:
            raise LoadError(f"[bailingmoe3] kda.gate_lower_bound {bound} is out of range: expected less than 0")
        super().__init__(keys, weights, n_vocab)
        for block, layer in zip(self.blocks, weights.blocks(self.config.n_layer), strict=True):
            mixer = block.attention  # type: ignore[attr-defined]
            if isinstance(mixer, DeltaAttention):
                mixer.bound = bound
            else:
                mixer.gate = layer.linear("attn_gate", self.config.dim, self.config.n_head)

    def n_left_out(self, keys: Keys, weights: Weights, n_layer: int) -> int:
        return layers_left_out(keys, weights, n_layer)

    def rotation(self, keys: Keys, n_rot: int) -> tuple[RopeSpec | None, float]:
        return latent_rope(keys, n_dims=n_rot, layout="interleaved")


MODEL = BailingMoe3

# --- checkpoint ---


def _full_layers(config: Fields) -> list[int]:
    n, period = config.integer("num_hidden_layers"), config.integer("layer_group_size", 6, low=1)
    if is_linear := layers_of_type(config, "linear_attention"):
        return [int(not one) for one in is_linear]
    return [int((i + 1) % period == 0) for i in range(n)]


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; ``partial_rotary_factor`` is redundant beside ``qk_rope_head_dim``."""
    part = config.integer("qk_rope_head_dim", 64) / config.integer("head_dim", 128)
    if (found := config.number("partial_rotary_factor", part)) != part:
        raise UnsupportedError(f"[convert] 'partial_rotary_factor' is {found}, but 'qk_rope_head_dim' gives {part}")
    yield from deepseek2.rope(config)


def _rate(x: Array, config: Fields) -> Array:
    import numpy as np

    return np.exp(x).reshape(-1, 1)


_OURS = "model.layers.{i}.self_attn"
_ATTENTION = "model.layers.{i}.attention"


def _renamed(source: str | Source) -> str | Source:
    if isinstance(source, str):
        return source.replace(_OURS, _ATTENTION)
    return Source(tuple(name.replace(_OURS, _ATTENTION) for name in source.names), source.change)


def _delta_size(config: Fields) -> int:
    """Return the size of the delta rule's heads; where transformers saves it apart, head_dim is that of RoPE."""
    size = config.integer("head_dim", 128)
    return config.integer("linear_head_dim", size)


class OneGate(Checkpoint):
    """Both kinds of layers have a ``g_proj``, which is one tensor where the delta rule is and another elsewhere.

    Attributes:
        gate: The tensor where the delta rule is.
        beside: A source that only these layers have.
    """

    gate, beside = "ssm_g_a.weight", "f_proj"

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        return [
            target
            for target in super().targets(config, entries, there)
            if not target.name.endswith((self.gate, "attn_gate.weight"))
            or target.name.endswith(self.gate) == (target.sources[0].replace("g_proj", self.beside) in there)
        ]


_HYBRID = OneGate(
    "bailingmoe3",
    {
        **LATENT_KEYS,
        "context_length": u32("max_position_embeddings", "model_max_length", default=262144),
        "attention.head_count_kv": computed("u32[]", _full_layers),
        "attention.q_lora_rank": q_rank(0),
        "attention.latent_norm_rms_epsilon": latent_eps(1e-6),
        "ssm.conv_kernel": u32("short_conv_kernel_size", default=4),
        "kda.head_dim": computed("u32", _delta_size),
        "kda.safe_gate": flag("kda_safe_gate", default=True),
        "kda.gate_lower_bound": f32("kda_lower_bound", default=-5.0),
        "expert_count": u32("num_experts", "num_local_experts", default=512),
        "expert_used_count": u32("num_experts_per_tok", "num_experts_per_token", default=8),
        "expert_feed_forward_length": u32("moe_intermediate_size", default=768),
        "expert_shared_count": u32("num_shared_experts", "n_shared_experts", default=1),
        "expert_group_count": u32("n_group", "num_expert_group", default=8, low=1),
        "expert_group_used_count": u32("topk_group", default=4, low=1),
        "expert_gating_func": computed("u32", lambda config: 2),
        "expert_weights_norm": flag("norm_topk_prob", default=True),
        "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
        "leading_dense_block_count": computed(
            "u32", lambda config: n_dense(config, config.integer("first_k_dense_replace", 2))
        ),
    },
    {
        **{name: _renamed(source) for name, source in {**LATENT_TENSORS, **DECODER_TENSORS}.items()},
        **EXPERT_TENSORS,
        **SHARED_EXPERT_TENSORS,
        "token_embd": "model.word_embeddings",
        "blk.{i}.attn_output": f"{_ATTENTION}.dense",
        "blk.{i}.attn_gate": f"{_ATTENTION}.g_proj",
        **{f"blk.{{i}}.ssm_conv1d_{one}": f"{_ATTENTION}.{one}_conv1d" for one in "qkv"},
        "blk.{i}.ssm_f_a": f"{_ATTENTION}.f_proj",
        "blk.{i}.ssm_g_a": f"{_ATTENTION}.g_proj",
        "blk.{i}.ssm_beta": f"{_ATTENTION}.b_proj",
        "blk.{i}.ssm_dt.bias": f"{_ATTENTION}.dt_bias",
        "blk.{i}.ssm_a": tensor(f"{_ATTENTION}.A_log", change=_rate),
        "blk.{i}.ssm_norm": f"{_ATTENTION}.o_norm",
        "blk.{i}.exp_probs_b.bias": "model.layers.{i}.mlp.gate.expert_bias",
    },
    fixed={**deepseek2.FIXED, "kda_safe_gate": (True,)},
    checks=(deepseek2.all_heads,),
    rope=deepseek2.rope,
    # transformers writes linear_* as copies of the other fields.
    unused=(*deepseek2.UNUSED, "mtp_*", "pretraining_tp", "linear_*"),
    ignored=("model.layers.24.*", "model.layers.42.*"),  # layers that predict later tokens
)
HF = {
    "BailingHybridForCausalLM": _HYBRID,
    # The class of published checkpoints
    "BailingMoeV3ForCausalLM": replace(
        _HYBRID,
        keys={**_HYBRID.keys, "kda.head_dim": u32("head_dim", default=128)},
        fixed={
            **_HYBRID.fixed,
            "no_kda_lora": (True,),
            "linear_attention": ("kda", None),
            "gated_attention_proj_granularity_type": ("head_wise",),
            "moe_router_enable_expert_bias": (True,),
            "score_function": ("sigmoid",),
            "use_bias": (False, None),
            "use_qkv_bias": (False, None),
            "use_qk_norm": (True, None),
            "rope_interleave": (True, None),
            "expert_swiglu_limit_list": (None,),
            "share_expert_swiglu_limit_list": (None,),
        },
        checks=(*_HYBRID.checks, shared_experts),
        unused=(
            *_HYBRID.unused,
            "max_window_layers",
            "pregate_*",
            "group_norm_size",
            "linear_silu",
            "output_router_logits",
            "num_kv_heads_for_linear_attn",
            "router_dtype",
            "rotary_dim",
            "*_dropout",
            "use_rmsnorm",
            "linear_*",
        ),
        rope=_rope,
    ),
}
