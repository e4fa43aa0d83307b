"""Muse Glimmer (Meta 2026), text: gated attention with windows, or without RoPE in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    Source,
    adding,
    cap,
    computed,
    f32,
    interleaved,
    local_layers,
    tensor,
    u32,
    with_pictures,
)
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, Step, Tensor, Weights, rope_spec, soft_cap
from .afmoe import Attention
from .base import Decoder, DenseConfig, SandwichBlock
from .base import local_layers as locals_of

ARCHES = ("muse-glimmer",)
PERIOD = 4  # every fourth layer has full attention, and no RoPE
POST_NORM_EPS = 1e-8  # used by the norms after attention and MLP; files have no key for it


class MuseGlimmer(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        window = keys.integer("attention.sliding_window", 0)
        local = locals_of(keys, config.n_layer, PERIOD)
        self.windows = [window if one else 0 for one in local]
        self.scale, self.cap = keys.number("logit_scale"), keys.number("final_logit_softcapping", 0.0)
        if self.cap < 0:
            raise LoadError(f"[muse-glimmer] final_logit_softcapping {self.cap} is out of range: expected 0 or more")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        blocks = []
        for i, block in enumerate(weights.blocks(config.n_layer)):
            attention = Attention(config, block, i, rotation, rotates=local[i])
            made = SandwichBlock(config, block, attention, GatedMLP(block, config.dim, config.ffn_dim))
            made.attn_post = replace(made.attn_post, eps=POST_NORM_EPS)
            made.ffn_post = replace(made.ffn_post, eps=POST_NORM_EPS)
            blocks.append(made)
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)

    def __call__(self, step: Step) -> Tensor:
        x = graph.rms_norm(self.embedding(step.tokens), None, self.config.eps)
        logits = self.logits(step.with_media(x), step) * self.scale
        return soft_cap(logits, self.cap) if self.cap else logits


MODEL = MuseGlimmer

# --- checkpoint ---


def _pattern(config: Fields) -> list[bool]:
    n = config.integer("num_hidden_layers")
    by_default = [(n - 1 - i) % PERIOD != 0 for i in range(n)]
    return local_layers(config, PERIOD) if config.items("layer_types") else by_default


def _rotated_as_known(config: Fields) -> None:
    """Require RoPE in exactly the layers with windows, with one base: files have no key for it."""
    config.number("qk_scale_factor", 3.87)  # a tensor holds it
    bases = config.items("layer_rope_theta")
    if bases and ([bool(base) for base in bases] != _pattern(config) or len({*bases, 0}) > 2):
        raise UnsupportedError(
            "[convert] unsupported 'layer_rope_theta': expected one base in layers with windows, else 0"
        )


def _constant(value: float | None) -> Change:
    """Make the norms of q and k, which have no weights; that of q holds ``qk_scale_factor``."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        n = x.shape[0] // config.integer("num_attention_heads")
        return np.full(n, config.number("qk_scale_factor", 3.87) if value is None else value, np.float32)

    return change


_LAYER = "model.layers.{i}"


def _one_added(name: str) -> Source:
    return tensor(f"{_LAYER}.{name}", change=adding(1.0))


HF = {
    "MuseGlimmerForConditionalGeneration": with_pictures(
        Checkpoint(
            "muse-glimmer",
            {
                **DECODER_KEYS,
                "attention.head_count_kv": u32("num_key_value_heads", default=2, low=1),
                "attention.key_length": u32("head_dim", default=128),
                "attention.value_length": u32("head_dim", default=128),
                "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
                "attention.sliding_window": u32("sliding_window", default=2048, low=1),
                "attention.sliding_window_pattern": computed("bool[]", _pattern),
                "final_logit_softcapping": cap("final_logit_softcapping", 20.0),
                "logit_scale": f32("output_multiplier", default=0.19611613513818404),
            },
            {
                **DECODER_TENSORS,
                "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=interleaved("num_attention_heads")),
                "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=interleaved("num_key_value_heads")),
                "blk.{i}.attn_q_norm": tensor(f"{_LAYER}.self_attn.q_proj", change=_constant(None)),
                "blk.{i}.attn_k_norm": tensor(f"{_LAYER}.self_attn.q_proj", change=_constant(1.0)),
                "blk.{i}.attn_gate": f"{_LAYER}.self_attn.gate_proj",
                "blk.{i}.attn_norm": _one_added("input_layernorm"),
                "blk.{i}.post_attention_norm": _one_added("post_attention_layernorm"),
                "blk.{i}.ffn_norm": _one_added("pre_feedforward_layernorm"),
                "blk.{i}.post_ffw_norm": _one_added("post_feedforward_layernorm"),
            },
            fixed={"hidden_activation": SILU, "attention_bias": (False,), "post_norm_eps": (POST_NORM_EPS,)},
            checks=(_rotated_as_known,),
            unused=("hidden_act", "out_hidden_size"),
            ignored=("model.vision_*", "vision_*"),
        )
    )
}
