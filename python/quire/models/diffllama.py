"""DiffLlama (Ye et al. 2024): Llama with differential attention, the difference of two heads' attention."""

from __future__ import annotations

import math

from .._native import graph
from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, Fields, computed, u32
from ..errors import LoadError, UnsupportedError
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from .base import Block, Decoder, DenseConfig

ARCHES = ("diffllama",)
LAMBDAS = ("q1", "k1", "q2", "k2")


class Attention:
    """Values of two heads are joined, so ``v_head_dim`` is twice ``head_dim``; half of the heads are subtracted."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        import numpy as np

        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation, self.eps = config.head_dim**-0.5, rotation, config.eps
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim)
        self.k, self.v = (weights.linear(f"attn_{one}", config.dim, config.n_kv_head * config.head_dim) for one in "kv")
        self.o = weights.linear("attn_output", config.n_head * config.head_dim, config.dim)
        q1, k1, q2, k2 = (weights.numbers(f"attn_lambda_{one}.weight", (config.head_dim,)) for one in LAMBDAS)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.share = float(np.exp(np.sum(q1 * k1)) - np.exp(np.sum(q2 * k2))) + self.start

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        half_kv, half = self.n_kv_head // 2, self.n_head // 2
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        v = graph.concat(graph.slice(v, 1, 0, half_kv), graph.slice(v, 1, half_kv, self.n_kv_head), 0)
        y = step.attend(self.layer, q, k, graph.concat(v, v, 1), scale=self.scale).heads(self.n_head)
        y = graph.slice(y, 1, 0, half) + graph.slice(y, 1, half, self.n_head) * -self.share
        return self.o((graph.rms_norm(y, None, self.eps) * (1 - self.start)).merge_heads())


class DiffLlama(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        if config.n_kv_head % 2 or config.v_head_dim != 2 * config.head_dim:
            raise LoadError(
                f"[diffllama] expected an even attention.head_count_kv and attention.value_length of twice "
                f"{config.head_dim}, got {config.n_kv_head} and {config.v_head_dim}"
            )
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = DiffLlama

# --- checkpoint ---


def _head_dim(config: Fields) -> int:
    n = config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
    return n if config.is_null("head_dim") else config.integer("head_dim", n, low=1)


def _pairs(config: Fields) -> None:
    name = "num_key_value_heads" if config.has("num_key_value_heads") else "num_attention_heads"
    if (n := config.integer(name)) % 2:
        raise UnsupportedError(f"[convert] unsupported '{name}': {n} (expected an even number)")


HF = {
    "DiffLlamaForCausalLM": Checkpoint(
        "diffllama",
        {
            **DECODER_KEYS,
            "attention.key_length": computed("u32", _head_dim),
            "attention.value_length": computed("u32", lambda config: 2 * _head_dim(config)),
            "attention.head_count_kv": u32("num_key_value_heads", "num_attention_heads", low=1),
        },
        {
            **DECODER_TENSORS,
            **{f"blk.{{i}}.attn_lambda_{one}.weight": f"model.layers.{{i}}.self_attn.lambda_{one}" for one in LAMBDAS},
        },
        fixed={
            "hidden_act": SILU,
            "attention_bias": (False,),
            "mlp_bias": (False, None),
            "attention_dropout": (0, None),
        },
        checks=(_pairs,),
        unused=("lambda_std_dev", "pretraining_tp"),
    )
}
