"""Spark X2.5 (iFlytek 2026): windows in some layers, a sigmoid gate for each head, GELU, and RoPE by kind of layer."""

from __future__ import annotations

from collections.abc import Iterator

from .._native.graph import multiply_broadcast, sigmoid
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Fields,
    computed,
    has_windows,
    layers_of_type,
    u32,
)
from ..checkpoints.mapping.rope import Entry, kind_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope_spec
from . import classic
from .base import Block, Decoder, DenseConfig
from .laguna import nearby

ARCHES = ("spark2_5",)


class Attention(classic.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.gate = weights.linear("attn_gate", config.dim, config.n_head)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.placed(self.q(x).heads(self.n_head), step), self.placed(self.k(x).heads(self.n_kv_head), step)
        y = step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale).heads(self.n_head)
        return self.o(multiply_broadcast(y, sigmoid(self.gate(x)).heads(self.n_head)).merge_heads())


class Spark(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        window = keys.integer("attention.sliding_window", low=1)
        local = keys.integers("attention.sliding_window_pattern", config.n_layer, high=1)
        self.windows = [window if one else 0 for one in local]
        keys.only("rope.scaling.type", "none")
        rotations = [rope_spec(keys, n_dims=config.n_rot, layout="half"), nearby(keys, config)]
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotations[local[i]]),
                GatedMLP(block, config.dim, config.ffn_dim, "gelu"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Spark

# --- checkpoint ---


def _local(config: Fields) -> list[bool]:
    local = layers_of_type(config, "sliding_attention")
    if not local:
        raise UnsupportedError("[convert] missing 'layer_types': expected one for each layer")
    has_windows(config)
    return local


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys of both kinds of layers."""
    for kind, suffix in (("full_attention", ""), ("sliding_attention", "_swa")):
        rope = config.inner("rope_parameters").inner(kind)
        if kind_of(rope) != "default":
            raise UnsupportedError(f"[convert] unsupported rope scaling '{kind_of(rope)}': expected default")
        yield f"rope.freq_base{suffix}", "f32", rope.number("rope_theta")
        part = rope.number("partial_rotary_factor", 1.0)
        yield f"rope.dimension_count{suffix}", "u32", int(config.integer("head_dim") * part)


HF = {
    "Spark2_5ForCausalLM": Checkpoint(
        "spark2_5",
        {
            **DECODER_KEYS,
            "attention.sliding_window": u32("sliding_window", low=1),
            "attention.sliding_window_pattern": computed("bool[]", _local),
        },
        {
            **DECODER_TENSORS,
            "blk.{i}.attn_qkv": "model.layers.{i}.self_attn.q_k_v_proj",
            "blk.{i}.attn_gate": "model.layers.{i}.self_attn.g_proj",
        },
        fixed={
            "hidden_act": ("gelu",),
            "gate_attn_act_mode": ("sigmoid",),
            "headwise_attn_output_gate": (True,),
            "attention_bias": (False,),
            "mlp_bias": (False,),
        },
        rope=_rope,
    )
}
