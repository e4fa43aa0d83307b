"""Command A+ (Cohere 2026): Command A with routed and shared experts, whose sum is halved."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import (
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    has_windows,
    local_layers,
    n_dense,
    u32,
)
from ..errors import UnsupportedError
from ..nn import (
    ROUTING,
    CacheSpec,
    ExpertConfig,
    GatedMLP,
    Keys,
    Step,
    Tensor,
    Weights,
    experts_of,
    frequency_factors,
    rope_spec,
    select_rows,
)
from .base import MAX_DIM, DenseConfig, Layer, Mixer, head, layers_left_out
from .base import local_layers as locals_of
from .classic import EPS, Attention
from .cohere2 import PERIOD
from .command_r import KEYS, TENSORS

ARCHES = ("cohere2moe",)
RMS = "attention.layer_norm_rms_epsilon"


class Block:
    """Attention and MLP in parallel."""

    def __init__(self, norm: Layer, attention: Mixer, mlp: Layer, factor: float) -> None:
        self.norm, self.attention, self.mlp, self.factor = norm, attention, mlp, factor

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        normed = self.norm(x)
        y = self.mlp(normed)
        return x + self.attention(normed, step) + (y if self.factor == 1.0 else y * self.factor)


class Cohere2Moe:
    """Windowed and dense layers use RoPE.  The epsilon in the file tells whether norms are RMS or layer norms."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        is_rms = keys.has(RMS)
        config = DenseConfig.read(keys, n_vocab, eps=RMS if is_rms else EPS)
        keys.without_effect(EPS)
        n_layer = config.n_layer - layers_left_out(keys, weights, config.n_layer)
        experts = ExpertConfig.read(
            keys, n_layer, gating="sigmoid", normalize=False, ffn_dim=config.ffn_dim, reads=ROUTING
        )
        n_shared = keys.integer("expert_shared_count", 0, high=64)
        shared_dim = keys.integer("expert_shared_feed_forward_length", n_shared * experts.ffn_dim, high=MAX_DIM)
        n_dense_layers = keys.integer("leading_dense_block_count")
        window = keys.integer("attention.sliding_window", low=1)
        self.windows = [window if local else 0 for local in locals_of(keys, n_layer, PERIOD, last=False)]
        keys.only("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )

        def norm(block: Weights, name: str) -> Layer:
            return (
                block.norm(name, config.dim, config.eps) if is_rms else block.layer_norm(name, config.dim, config.eps)
            )

        def make_block(i: int, block: Weights) -> Block:
            is_dense = i < n_dense_layers
            attention = Attention(config, block, i, rotation if is_dense or self.windows[i] else None)
            shared = shared_dim if n_shared else 0
            mlp: Layer = (
                GatedMLP(block, config.dim, config.ffn_dim)
                if is_dense
                else experts_of(block, config.dim, experts, shared)
            )
            return Block(norm(block, "attn_norm"), attention, mlp, 0.5 if shared and not is_dense else 1.0)

        self.config, self.embedding = config, weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = [make_block(i, block) for i, block in enumerate(weights.blocks(n_layer))]
        self.norm, self.head = norm(weights, "output_norm"), head(weights, config, self.embedding)
        self.scale = keys.number("logit_scale", 0.0) or 1.0  # 0: not set

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.blocks, self.embedding(step.tokens))
        return self.head(self.norm(select_rows(x, step.logit_rows))) * self.scale


MODEL = Cohere2Moe

# --- checkpoint ---


def _first(config: Fields) -> int:
    return config.integer("first_k_dense_replace", 0)


def _window(config: Fields) -> int:
    has_windows(config)
    return config.integer("sliding_window", 4096, low=1)


def _pattern(config: Fields) -> Sequence[bool]:
    """Return the layers with windows: as listed, or by a period that restarts after the dense layers.

    Dense full-attention layers use RoPE only if their period is 1; files have no key for that.
    """
    periods = {
        n: config.integer(n, default)
        for n, default in (("prefix_dense_sliding_window_pattern", 1), ("sliding_window_pattern", PERIOD))
    }
    for name, period in periods.items():
        if period == 0 and not config.items("layer_types"):
            raise UnsupportedError(f"[convert] unsupported '{name}': 0")
    own, others = periods.values()
    first, n_layer = min(_first(config), config.integer("num_hidden_layers")), config.integer("num_hidden_layers")
    pattern = local_layers(config, 1)
    if not config.items("layer_types"):
        pattern = [(i + 1) % own != 0 for i in range(first)] + [(i + 1) % others != 0 for i in range(n_layer - first)]
    if own != 1 and not all(pattern[: n_dense(config, first)]):
        raise UnsupportedError(
            f"[convert] unsupported 'prefix_dense_sliding_window_pattern': {own} (expected 1, as a dense layer has no "
            f"window)"
        )
    return pattern


def _shared_dim(config: Fields) -> int | None:
    return config.integer("intermediate_size") * config.integer("num_shared_experts", 0) or None


def _gating(config: Fields) -> int:
    kind = config.text("expert_selection_fn", "softmax")
    if kind not in ("softmax", "sigmoid"):
        raise UnsupportedError(f"[convert] unsupported 'expert_selection_fn': '{kind}' (expected softmax or sigmoid)")
    return 3 if kind == "softmax" else 2


def _ffn_dim(config: Fields) -> int:
    return config.integer("prefix_dense_intermediate_size", config.integer("intermediate_size"))


HF = {
    "Cohere2MoeForCausalLM": Checkpoint(
        "cohere2moe",
        {
            **KEYS,
            "feed_forward_length": computed("u32", _ffn_dim),
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            RMS: f32("rms_norm_eps", default=None),
            "attention.sliding_window": computed("u32", _window),
            "attention.sliding_window_pattern": computed("bool[]", _pattern),
            "expert_count": u32("num_experts", default=8),
            "expert_used_count": u32("num_experts_per_tok", default=2),
            "expert_feed_forward_length": u32("intermediate_size"),
            "expert_shared_count": computed("u32", lambda config: config.integer("num_shared_experts", 0) or None),
            "expert_shared_feed_forward_length": computed("u32", _shared_dim),
            "expert_gating_func": computed("u32", _gating),
            "expert_weights_norm": computed("bool", lambda config: config.flag("norm_topk_prob", True)),
            "leading_dense_block_count": computed("u32", lambda config: n_dense(config, _first(config))),
            "vocab_size": u32("vocab_size"),
        },
        {
            **TENSORS,
            **EXPERT_TENSORS,
            **SHARED_EXPERT_TENSORS,
        },
        fixed={"hidden_act": SILU, "shared_expert_combination_strategy": ("average",)},
        tied=True,
        unused=("attention_bias", "num_nextn_predict_layers"),
    )
}
