"""Gemma 3 (Kamath et al. 2025): windows in five of six layers, two RoPE bases, pre- and post-norms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Fields,
    Key,
    Source,
    adding,
    cap,
    computed,
    rope_keys,
    tensor,
    u32,
    with_pictures,
)
from ..checkpoints.mapping import local_layers as locals_of
from ..checkpoints.mapping.rope import Entry, has_new_name, kind_of, rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import (
    CacheSpec,
    GatedMLP,
    Keys,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
    soft_cap,
)
from .base import Decoder, DenseConfig, SandwichBlock, local_layers

ARCHES = ("gemma3",)
PERIOD = 6  # every sixth layer has full attention
LOCAL_BASE, GLOBAL_BASE = 10000.0, 1e6


def attention_scale_of(n_layer: int, dim: int, n_head: int, head_dim: int) -> float:
    """Return 1 / scale²: the size of a head, except in the 27B model, where it is ``dim / n_head``."""
    return dim // n_head if n_layer == 62 else head_dim


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        n_head = config.n_head * weights.n_parts
        self.scale = attention_scale_of(config.n_layer, config.dim, n_head, config.head_dim) ** -0.5
        self.rotation = rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)
        self.q_norm = weights.norm("attn_q_norm", config.head_dim, config.eps)
        self.k_norm = weights.norm("attn_k_norm", config.head_dim, config.eps)

    def heads(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values."""
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        return q, k, self.v(x).heads(self.n_kv_head)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.heads(x, step)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Gemma3(Decoder):
    """Files store norm weights with the 1 added that checkpoints omit."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.window = keys.integer("attention.sliding_window", 0)  # 0: full attention in every layer
        self.is_local = [self.window > 0 and local for local in local_layers(keys, config.n_layer, PERIOD)]
        self.cap = keys.number("final_logit_softcapping", 0.0)
        local_base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        if local_base <= 0 or self.cap < 0:
            raise LoadError(
                f"[gemma3] rope.freq_base_swa {local_base} or final_logit_softcapping {self.cap} is out of range"
            )
        keys.only("rope.dimension_count_swa", config.n_rot)
        everywhere = rope_spec(
            keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot)
        )
        nearby = rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=local_base)
        blocks = [
            SandwichBlock(
                config,
                block,
                Attention(config, block, i, nearby if self.is_local[i] else everywhere),
                GatedMLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        config = self.config
        return [
            CacheSpec(
                n_kv_head=config.n_kv_head, head_dim=config.head_dim, v_head_dim=config.v_head_dim,
                window=self.window if local else 0, bidirectional_media=True,
            )
            for local in self.is_local
        ]  # fmt: skip

    def __call__(self, step: Step) -> Tensor:
        x = step.with_media(self.embedding(step.tokens) * self.config.dim**0.5)
        logits = self.logits(x, step)
        return soft_cap(logits, self.cap) if self.cap else logits


MODEL = Gemma3

# --- checkpoint ---


def _pattern(config: Fields) -> Sequence[bool] | None:
    """Return the layers with windows, or None for the usual period, which is not written."""
    local = locals_of(config, config.integer("sliding_window_pattern", PERIOD))
    return None if local == [bool((i + 1) % PERIOD) for i in range(len(local))] else local


def scale_is_known(config: Fields) -> None:
    n_layer, n_head = config.integer("num_hidden_layers"), config.integer("num_attention_heads", low=1)
    expected = attention_scale_of(n_layer, config.integer("hidden_size"), n_head, config.integer("head_dim", 256))
    if (found := config.number("query_pre_attn_scalar", 256.0)) != expected:
        raise UnsupportedError(f"[convert] unsupported 'query_pre_attn_scalar': {found} (expected {expected})")


def rope_entries(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys: scaling applies to full-attention layers, windowed layers only have a base."""
    local = rope_of(config, "sliding_attention")
    if config.has("rope_parameters"):
        kinds = config.inner("rope_parameters")
        if not kinds.has("full_attention") and not kinds.has("sliding_attention"):
            raise UnsupportedError("[convert] unsupported 'rope_parameters': expected one entry for each kind of layer")
        if kinds.has("sliding_attention"):
            if kind_of(local) != "default":
                raise UnsupportedError(
                    f"[convert] unsupported rope scaling of sliding_attention: '{kind_of(local)}' (expected default)"
                )
            yield "rope.freq_base_swa", "f32", local.number("rope_theta", LOCAL_BASE)
    else:
        has_new_name(config)
        yield "rope.freq_base_swa", "f32", config.number("rope_local_base_freq", LOCAL_BASE)
    for key, kind, value in rope_keys(config, GLOBAL_BASE):
        if key == "rope.scaling.attn_factor":
            raise UnsupportedError(f"[convert] unsupported 'attention_factor' of the rope scaling: {value}")
        yield key, kind, value


KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "context_length": u32("max_position_embeddings", default=131072),
    "attention.head_count_kv": u32("num_key_value_heads", default=4),
    "attention.key_length": u32("head_dim", default=256),
    "attention.value_length": u32("head_dim", default=256),
    "attention.sliding_window": u32("sliding_window", default=4096, low=1),
    "attention.sliding_window_pattern": computed("bool[]", _pattern),
    "final_logit_softcapping": cap("final_logit_softcapping", None, none=None),
}
_LAYER = "model.layers.{i}"
NORMS = {
    "output_norm": "model.norm",
    "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
    "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{i}.ffn_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "blk.{i}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
}
HEAD_NORMS = {
    "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
}


def one_added(norms: Mapping[str, str]) -> dict[str, Source]:
    """Return norms with the 1 added that checkpoints omit."""
    return {ours: tensor(theirs, change=adding(1.0)) for ours, theirs in norms.items()}


GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")  # names of the same function
# The sizes of the 4B model, whose configuration omits them.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
_TEXT = Checkpoint(
    "gemma3",
    KEYS,
    {**DECODER_TENSORS, **one_added({**NORMS, **HEAD_NORMS})},
    fixed={
        "hidden_activation": GELU_TANH,
        "use_bidirectional_attention": (False, None),
        "attn_logit_softcapping": (None,),
    },
    checks=(scale_is_known,),
    rope=rope_entries,
    tied=True,
    unused=("attention_bias", "hidden_act"),  # transformers reads hidden_activation instead
)
# transformers does not cap the logits of this class.
_UNCAPPED = replace(_TEXT, fixed={**_TEXT.fixed, "final_logit_softcapping": (None,)})
HF = {
    "Gemma3ForCausalLM": _TEXT,
    "Gemma3ForConditionalGeneration": with_pictures(_UNCAPPED, defaults=_DEFAULTS),
}
