"""Gemma 2 (Riviere et al. 2024): soft caps on scores and logits, a window in every other layer."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Fields,
    cap,
    computed,
    local_layers,
    u32,
    window,
)
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec, soft_cap
from .base import Block, Decoder, DenseConfig, SandwichBlock
from .base import local_layers as locals_of
from .encoding import scoring
from .gemma3 import GELU_TANH, NORMS, one_added

ARCHES = ("gemma2",)
PERIOD = 2  # every second layer has full attention


def attention_scale_of(n_layer: int, dim: int, n_head: int, head_dim: int) -> float:
    """Return 1 / scale²: the size of a head, except in the 27B model, where it is ``dim / n_head``."""
    return dim // n_head if n_layer == 46 else head_dim


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, cap: float) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        n_head = config.n_head * weights.n_parts
        self.scale = attention_scale_of(config.n_layer, config.dim, n_head, config.head_dim) ** -0.5
        self.rotation, self.cap = rotation, cap
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale, soft_cap=self.cap))


class Gemma2(Decoder):
    """Files store norm weights with the 1 added that checkpoints omit."""

    block: type[Block] | type[SandwichBlock] = SandwichBlock

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        window = keys.integer("attention.sliding_window", 4096)
        self.windows = [window if local else 0 for local in locals_of(keys, config.n_layer, PERIOD)]
        cap = keys.number("attn_logit_softcapping", 50.0)
        self.cap = keys.number("final_logit_softcapping", 30.0)
        if cap < 0 or self.cap < 0:
            raise LoadError(
                f"[{keys.arch}] negative soft cap: attn_logit_softcapping {cap}, final_logit_softcapping {self.cap}"
            )
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            self.block(
                config,
                block,
                Attention(config, block, i, rotation, cap),
                GatedMLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens) * self.config.dim**0.5
        logits = self.logits(x, step)
        return soft_cap(logits, self.cap) if self.cap else logits


MODEL = Gemma2

# --- checkpoint ---


def _pattern(config: Fields) -> Sequence[bool] | None:
    """Return the layers with windows, or None for the usual alternation, which is not written."""
    local = local_layers(config, PERIOD)
    return None if local == [i % PERIOD == 0 for i in range(len(local))] else local


def _scale_is_known(config: Fields) -> None:
    n_layer, n_head = config.integer("num_hidden_layers"), config.integer("num_attention_heads", low=1)
    expected = attention_scale_of(n_layer, config.integer("hidden_size"), n_head, config.integer("head_dim", 256))
    if (found := config.number("query_pre_attn_scalar", 256.0)) != expected:
        raise UnsupportedError(f"[convert] unsupported 'query_pre_attn_scalar': {found} (expected {expected})")


_CAUSAL = Checkpoint(
    "gemma2",
    {
        **DECODER_KEYS,
        "context_length": u32("max_position_embeddings", default=8192),
        "attention.head_count_kv": u32("num_key_value_heads", default=4, low=1),
        "attention.key_length": u32("head_dim", default=256),
        "attention.value_length": u32("head_dim", default=256),
        "attention.sliding_window": window(4096, none=0),
        "attention.sliding_window_pattern": computed("bool[]", _pattern),
        "attn_logit_softcapping": cap("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": cap("final_logit_softcapping", 30.0),
    },
    {**DECODER_TENSORS, **one_added(NORMS)},
    fixed={"hidden_activation": GELU_TANH, "use_bidirectional_attention": (False, None)},
    checks=(_scale_is_known,),
    tied=True,
    unused=("attention_bias", "hidden_act"),  # transformers reads hidden_activation instead
)
HF = {
    "Gemma2ForCausalLM": _CAUSAL,
    "Gemma2ForSequenceClassification": scoring(_CAUSAL),
}
