"""Flint (Recursive 2026): Qwen3's attention with sinks, windowed or without RoPE; sigmoid routing, a shared expert."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    flag,
    has_windows,
    local_layers,
    u32,
)
from ..errors import UnsupportedError
from ..nn import ROUTING, CacheSpec, ExpertConfig, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from . import qwen3
from .base import MAX_DIM, Block, Decoder, DenseConfig, dense_then_experts
from .base import local_layers as locals_of

ARCHES = ("flint",)


class Attention(qwen3.Attention):
    """``rotates``: with RoPE."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, *, rotates: bool) -> None:
        super().__init__(config, weights, layer, rotation)
        self.sinks = weights.tensor("attn_sinks.weight", (config.n_head,), vector=True)
        self.rotates = rotates

    def attended(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.q_norm(self.q(x).heads(self.n_head)), self.k_norm(self.k(x).heads(self.n_kv_head))
        if self.rotates:
            q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        return step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale, sinks=self.sinks)


class Flint(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", reads=ROUTING)
        shared_dim = keys.integer("expert_shared_feed_forward_length", low=1, high=MAX_DIM)
        window = keys.integer("attention.sliding_window", low=1)
        local = locals_of(keys, config.n_layer, 1)
        self.windows = [window if one else 0 for one in local]
        mlp = dense_then_experts(config, experts, shared_dim, keys.integer("leading_dense_block_count", 0))
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation, rotates=local[i]), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Flint

# --- checkpoint ---


def _pattern(config: Fields) -> list[bool]:
    if config.items("layer_types"):
        return local_layers(config, 1)
    n_layer = config.integer("num_hidden_layers")
    return [i > 1 and i % 4 != 1 and i != n_layer - 1 for i in range(n_layer)]


def _n_dense(config: Fields) -> int:
    dense = config.items("mlp_only_layers") if config.has("mlp_only_layers") else [0, 1]
    if sorted(map(str, dense)) != sorted(str(i) for i in range(len(dense))):
        raise UnsupportedError(f"[convert] unsupported 'mlp_only_layers': {dense} (expected the first layers)")
    return len(dense)


_LAYER = "model.layers.{i}"
HF = {
    "FlintForCausalLM": Checkpoint(
        "flint",
        {
            **DECODER_KEYS,
            "feed_forward_length": u32("intermediate_size", default=6144),
            "attention.head_count_kv": u32("num_key_value_heads", default=4, low=1),
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.sliding_window": u32("sliding_window", default=513, low=1),
            "attention.sliding_window_pattern": computed("bool[]", _pattern),
            "expert_count": u32("num_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=6),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=512),
            "expert_shared_feed_forward_length": u32("shared_expert_intermediate_size", default=1024),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
            "leading_dense_block_count": computed("u32", _n_dense),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **qwen3.QK_NORMS,
            "blk.{i}.attn_sinks.weight": f"{_LAYER}.self_attn.softmax_offset",
            **{f"blk.{{i}}.ffn_{x}_shexp": f"{_LAYER}.mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
        },
        fixed={"hidden_act": SILU, "decoder_sparse_step": (1,)},
        checks=(has_windows,),
        unused=("attention_bias",),
    )
}
