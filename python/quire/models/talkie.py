"""Talkie (talkie-lm 2026): norms without weights, in heads after RoPE; every layer adds the embeddings, with a gain."""

from __future__ import annotations

from functools import partial

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Array,
    Checkpoint,
    Fields,
    Source,
    computed,
    rope_keys,
    tensor,
    u32,
)
from ..errors import LoadError
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec, select_rows, unit_norm
from . import llama
from .base import Decoder, DenseConfig, head

ARCHES = ("talkie",)


class Attention(llama.Attention):
    """Rotated queries and keys are normed; each head of queries has a gain."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.eps, self.gain = config.eps, weights.tensor("attn_q_norm.weight", (config.n_head, 1), vector=True)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head)
        q, k = (unit_norm(rope(one, step.positions, self.rotation), self.eps) for one in (q, k))
        q = graph.multiply_weight(q, self.gain)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class Block:
    """The gains of attention and MLP belong to their last products."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.attention, self.eps = Attention(config, weights, layer, rotation), config.eps
        self.mlp = GatedMLP(weights, config.dim, config.ffn_dim)
        self.skip = weights.tensor("layer_output_scale.weight", (1,), vector=True)

    def __call__(self, embedded: Tensor, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(unit_norm(x, self.eps), step)
        x = x + self.mlp(unit_norm(x, self.eps))
        return x + graph.multiply_weight(embedded, self.skip)


class Talkie(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = self.config = DenseConfig.read(keys, n_vocab)
        self.scale = keys.number("logit_scale")
        if self.scale == 0:
            raise LoadError("[talkie] invalid logit_scale: 0")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.layers = [Block(config, block, i, rotation) for i, block in enumerate(weights.blocks(config.n_layer))]
        self.head = head(weights, config, self.embedding)

    def __call__(self, step: Step) -> Tensor:
        embedded = unit_norm(self.embedding(step.tokens), self.config.eps)
        x = step.run_layers([partial(layer, embedded) for layer in self.layers], embedded)
        return self.head(unit_norm(select_rows(x, step.logit_rows), self.config.eps)) * self.scale


MODEL = Talkie

# --- checkpoint ---


def _turned_back(x: Array, config: Fields) -> Array:
    """Negate the second half of each head: the model turns heads the other way round."""
    heads = x.reshape(-1, 2, config.integer("head_dim") // 2, x.shape[-1])
    turned: Array = (heads * [[[1]], [[-1]]]).astype(x.dtype).reshape(x.shape)
    return turned


def _column(x: Array, config: Fields) -> Array:
    return x[:, None]


_BLOCK = "model.blocks.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "model.embed",
    "output.weight": "lm_head",
    "blk.{i}.attn_q": tensor(f"{_BLOCK}.attn.attn_query", change=_turned_back),
    "blk.{i}.attn_k": tensor(f"{_BLOCK}.attn.attn_key", change=_turned_back),
    "blk.{i}.attn_v": f"{_BLOCK}.attn.attn_value",
    "blk.{i}.attn_q_norm.weight": tensor(f"{_BLOCK}.attn.head_gain.head_g", change=_column),
    "blk.{i}.attn_output": f"{_BLOCK}.attn.attn_resid",
    "blk.{i}.attn_output.scale": f"{_BLOCK}.attn_gain.a_g",
    "blk.{i}.ffn_gate": f"{_BLOCK}.mlp.mlp_gate",
    "blk.{i}.ffn_up": f"{_BLOCK}.mlp.mlp_linear",
    "blk.{i}.ffn_down": f"{_BLOCK}.mlp.mlp_resid",
    "blk.{i}.ffn_down.scale": f"{_BLOCK}.mlp_gain.a_g",
    "blk.{i}.layer_output_scale.weight": f"{_BLOCK}.embed_skip.a_g",
}

HF = {
    "TalkieForCausalLM": Checkpoint(
        "talkie",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": u32("num_attention_heads", low=1),
            "attention.layer_norm_rms_epsilon": computed("f32", lambda config: 2.0**-23),  # torch's default
        },
        _TENSORS,
        fixed={"hidden_act": SILU, "tie_word_embeddings": (False,)},
        rope=partial(rope_keys, theta=1e6),
        numbers={"talkie.logit_scale": "lm_head_gain.w_g"},
    )
}
