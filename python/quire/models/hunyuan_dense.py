"""Hunyuan, dense (Tencent 2025): query and key norms after RoPE, a stretched RoPE base."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    no_windows,
    rope_keys,
)
from ..checkpoints.mapping.rope import Entry, kind_of, rope_of, theta_of
from ..nn import GatedMLP, Keys, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from . import qwen3
from .base import Block, Decoder, DenseConfig

ARCHES = ("hunyuan-dense",)


class Attention(qwen3.Attention):
    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = self.q_norm(rope(self.q(x).heads(self.n_head), step.positions, self.rotation))
        k = self.k_norm(rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation))
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class HunyuanDense(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = HunyuanDense

# --- checkpoint ---


def _head_dim(config: Fields) -> int:
    return config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads", low=1))


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; "dynamic" scaling with ``alpha`` is just a larger base."""
    rope = rope_of(config)
    if kind_of(rope) != "dynamic" or not rope.number("alpha", 0.0):
        yield from rope_keys(config)
        return
    dim = _head_dim(config)
    rope.read(("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings"))
    yield "rope.freq_base", "f32", theta_of(config) * rope.number("alpha") ** (dim / (dim - 2))
    yield "rope.scaling.type", "string", "none"
    yield "rope.scaling.factor", "f32", 1.0


HF = {
    "HunYuanDenseV1ForCausalLM": Checkpoint(
        "hunyuan-dense",
        {
            **DECODER_KEYS,
            "attention.key_length": computed("u32", _head_dim),
            "attention.value_length": computed("u32", _head_dim),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        },
        {
            **DECODER_TENSORS,
            "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.query_layernorm",
            "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.key_layernorm",
        },
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        rope=_rope,
        unused=("attention_bias",),
    )
}
