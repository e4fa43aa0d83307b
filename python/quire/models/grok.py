"""Grok 1 and 2 (xAI 2024): norms around attention and experts, soft caps on scores, an MLP beside the experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .._native import graph
from ..checkpoints.mapping import Checkpoint, Fields, Key, cap, computed, f32, only_with, tensor, u32
from ..checkpoints.mapping.decoder import DECODER_KEYS
from ..checkpoints.mapping.rope import Entry
from ..errors import LoadError, UnsupportedError
from ..nn import ExpertConfig, GatedMLP, Keys, MoE, Step, Tensor, Weights, rope_spec, soft_cap
from . import classic
from .base import Decoder, DenseConfig

ARCHES = ("grok",)
# The values of Grok 1, whose files may lack the keys.
CAP, OUTPUT_SCALE, LOGIT_SCALE, EMBEDDING_SCALE = 30.0, 0.08838834764831845, 0.5773502691896257, 78.38367176906169


def capped(x: Tensor, limit: float) -> Tensor:
    return soft_cap(x, limit) if limit else x


class Attention(classic.Attention):
    cap = 0.0

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = self.placed(self.q(x).heads(self.n_head), step)
        k = self.placed(self.k(x).heads(self.n_kv_head), step)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale, soft_cap=self.cap))


class Experts(MoE):
    """Experts by capped scores; Grok 2 adds an MLP and halves the sum's variance."""

    cap = 0.0
    beside: GatedMLP | None = None

    def __call__(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        y = graph.moe(x, capped(self.router(x), self.cap), self.gate, self.up, self.down, self.spec)
        return y if self.beside is None else (y + self.beside(x)) * 0.5**0.5


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention, experts: Experts) -> None:
        after = "layer_output_norm" if weights.has("layer_output_norm.weight") else "post_ffw_norm"
        self.norms = [
            weights.norm(name, config.dim, config.eps) for name in ("attn_norm", "attn_output_norm", "ffn_norm", after)
        ]
        self.attention, self.experts = attention, experts

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.norms[1](self.attention(self.norms[0](x), step))
        return x + self.norms[3](self.experts(self.norms[2](x)))


class Grok(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, normalize=False, ffn_dim=config.ffn_dim)
        caps = {one: keys.number(f"{one}_logit_softcapping", CAP) for one in ("attn", "router")}
        self.cap = keys.number("final_logit_softcapping", 0.0)
        if min(*caps.values(), self.cap) < 0:
            raise LoadError(f"[grok] negative soft cap: {caps}, final_logit_softcapping {self.cap}")
        self.scales = keys.number("embedding_scale", EMBEDDING_SCALE), keys.number("logit_scale", LOGIT_SCALE)
        scale = keys.number("attention.output_scale", OUTPUT_SCALE)
        self.longest = keys.integer("attention.temperature_length", 0, high=1 << 31)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")

        def make_block(i: int, block: Weights) -> Block:
            attention = Attention(config, block, i, rotation)
            attention.scale, attention.cap = scale, caps["attn"]
            routed = Experts(block, config.dim, experts.ffn_dim, experts.n, experts.spec("gelu_tanh"))
            routed.cap = caps["router"]
            if block.has("ffn_up.weight"):
                routed.beside = GatedMLP(block, config.dim, config.ffn_dim, "gelu_tanh")
            return Block(config, block, attention, routed)

        super().__init__(
            config, weights, [make_block(i, block) for i, block in enumerate(weights.blocks(config.n_layer))]
        )
        if self.longest:
            self.config = replace(config, n_ctx_train=min(config.n_ctx_train, self.longest))

    def __call__(self, step: Step) -> Tensor:
        if 0 < self.longest < step.n_ctx:
            raise UnsupportedError(
                f"[grok] n_ctx {step.n_ctx} is too large: scores that grow beyond attention.temperature_length are "
                f"unsupported, so contexts are limited to {self.longest} tokens (n_ctx={self.longest})"
            )
        return capped(self.logits(self.embedding(step.tokens) * self.scales[0], step) * self.scales[1], self.cap)


MODEL = Grok

# --- checkpoint ---


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the scaling that fields outside ``rope_scaling`` describe; "original" means none."""
    yield "rope.freq_base", "f32", config.number("rope_theta", 10000.0)
    kind = config.text("rope_type", "original")
    if kind == "yarn":
        yield "rope.scaling.type", "string", "yarn"
        yield "rope.scaling.factor", "f32", config.number("scaling_factor")
        yield "rope.scaling.original_context_length", "u32", config.integer("original_max_position_embeddings", low=1)
        yield "rope.scaling.yarn_attn_factor", "f32", 1.0
        yield "rope.scaling.yarn_beta_fast", "f32", config.number("beta_fast", 32.0)
        yield "rope.scaling.yarn_beta_slow", "f32", config.number("beta_slow", 1.0)
    elif kind != "original":
        raise UnsupportedError(f"[convert] unsupported 'rope_type': '{kind}' (expected 'original' or 'yarn')")


def _head_scale(config: Fields) -> float:
    n = config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
    return float(config.integer("head_dim", n, low=1) ** -0.5)


def _temperature_length(config: Fields) -> int | None:
    """Return the position beyond which scores grow; -1: none."""
    n = config.integer("attn_temperature_len", -1, low=-1)
    return n if n > 0 else None


_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "expert_used_count": u32("num_experts_per_tok", default=2),
    "embedding_scale": f32("embedding_multiplier_scale", default=EMBEDDING_SCALE),
    "logit_scale": f32("output_multiplier_scale", default=LOGIT_SCALE),
    "attention.output_scale": computed("f32", _head_scale),
    "attn_logit_softcapping": cap("attn_logit_softcapping", CAP),
    "router_logit_softcapping": cap("router_logit_softcapping", CAP),
}
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh", None)
_LAYER = "model.layers.{i}"
_NORMS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": f"{_LAYER}.pre_attn_norm",
    "blk.{i}.attn_output_norm": f"{_LAYER}.post_attn_norm",
    "blk.{i}.ffn_norm": f"{_LAYER}.pre_moe_norm",
    "blk.{i}.post_ffw_norm": f"{_LAYER}.post_moe_norm",
}
_PARTS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": "o_proj"}
HF = {
    # Grok 2
    "Grok1ForCausalLM": Checkpoint(
        "grok",
        {
            **_KEYS,
            "expert_count": u32("num_local_experts", low=1),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=None),
            "final_logit_softcapping": cap("final_logit_softcapping", None, none=None),
            "attention.temperature_length": computed("u32", _temperature_length),
        },
        {
            **_NORMS,
            **{f"blk.{{i}}.attn_{ours}": f"{_LAYER}.self_attn.{theirs}" for ours, theirs in _PARTS.items()},
            **{
                f"blk.{{i}}.ffn_{one}.weight": tensor(
                    f"{_LAYER}.mlp.{one}_proj.weight", change=only_with("residual_moe", default=False)
                )
                for one in ("gate", "up", "down")
            },
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.block_sparse_moe.gate",
            **{
                f"blk.{{i}}.ffn_{ours}_exps": f"{_LAYER}.block_sparse_moe.experts.{{e}}.{theirs}"
                for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
            },
        },
        fixed={
            "hidden_act": _GELU,
            "rope_rotate_half_dims": (False, None),
            "attn_logit_softcapping_method": ("tanh", None),
            "extrapolation_factor": (1, None),
            "sliding_window_size": (-1, None),
            "global_attn_every_n": (1, None),
        },
        rope=_rope,
        unused=(
            "attn_factor",
            "attn_output_multiplier",
            "merge_gate_up",
            "*_presharded_*",
            # YaRN's, which published configurations have although rope_type is "original".
            "scaling_factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
        ),
    ),
    "Grok1ModelForCausalLM": Checkpoint(
        "grok",
        {**_KEYS, "expert_count": u32("num_experts", default=8, low=1)},
        {
            **_NORMS,
            **{f"blk.{{i}}.attn_{ours}": f"{_LAYER}.attn.{theirs}" for ours, theirs in _PARTS.items()},
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.moe_block.gate",
            **{
                f"blk.{{i}}.ffn_{ours}_exps": f"{_LAYER}.moe_block.experts.{{e}}.{theirs}"
                for ours, theirs in (("gate", "linear"), ("up", "linear_v"), ("down", "linear_1"))
            },
        },
        fixed={"hidden_act": _GELU},
        rope=_rope,
        unused=("attn_output_multiplier", "max_attn_value", "router_aux_loss_coef", "output_router_logits"),
    ),
}
