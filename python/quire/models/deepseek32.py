"""DeepSeek V3.2 (DeepSeek-AI 2025), GLM 5 (Zhipu AI 2026): V3 with sparse attention to tokens that an indexer picks.

The indexer is not computed.  Contexts of up to ``top_k`` tokens (2048 in published models) do not need it, because it
would pick all of them; longer ones are rejected.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import PREDICTING_LAYERS, Fields, Key, computed, factor, n_dense, u32
from ..errors import UnsupportedError
from ..nn import Keys, Step, Tensor, Weights
from . import deepseek2

ARCHES = ("deepseek32", "glm-dsa")
WHY = "contexts are limited to lengths at which the indexer picks every token"


class DeepSeek32(deepseek2.DeepSeek2):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        weights.ignore("blk.*.indexer.*", WHY)
        for key in ("head_count", "key_length", "types"):
            keys.without_effect(f"attention.indexer.{key}")
        self.top_k = keys.integer("attention.indexer.top_k", low=1)
        super().__init__(keys, weights, n_vocab)
        self.config = replace(self.config, n_ctx_train=min(self.config.n_ctx_train, self.top_k))

    def __call__(self, step: Step) -> Tensor:
        if step.n_ctx > self.top_k:
            raise UnsupportedError(
                f"[{self.config.arch}] n_ctx {step.n_ctx} is too large: sparse attention is unsupported, so contexts "
                f"are limited to {self.top_k} tokens (n_ctx={self.top_k})"
            )
        return super().__call__(step)


MODEL = DeepSeek32

# --- checkpoint ---


def _n_dense(config: Fields) -> int:
    return n_dense(config, config.integer("first_k_dense_replace", 3))


def _types(config: Fields) -> list[bool]:
    """Return the layers with an indexer; the others reuse the previous layer's choice."""
    if kinds := config.items("indexer_types"):
        config.read(("index_topk_freq", "index_skip_topk_offset", "index_topk_pattern"))
        return [kind == "full" for kind in kinds]
    period, first = config.integer("index_topk_freq", 1, low=1), config.integer("index_skip_topk_offset", 2)
    return [max(i - first + 1, 0) % period == 0 for i in range(config.integer("num_hidden_layers"))]


def _all_pick(config: Fields) -> None:
    if any(kind != "indexed_attention" for kind in config.items("layer_types")):
        raise UnsupportedError("[convert] unsupported 'layer_types': expected indexed_attention for all layers")


_KEYS: dict[str, Key] = {
    "attention.indexer.head_count": u32("index_n_heads", default=64),
    "attention.indexer.key_length": u32("index_head_dim", default=128),
    "attention.indexer.top_k": u32("index_topk", default=2048, low=1),
    "expert_group_count": u32("n_group", default=8, low=1),
    "expert_group_used_count": u32("topk_group", default=4, low=1),
    "leading_dense_block_count": computed("u32", _n_dense),
}
_INDEXER = "model.layers.{i}.self_attn.indexer"
_TENSORS = {
    "blk.{i}.indexer.k_norm": f"{_INDEXER}.k_norm",
    "blk.{i}.indexer.proj": f"{_INDEXER}.weights_proj",
    "blk.{i}.indexer.attn_k": f"{_INDEXER}.wk",
    "blk.{i}.indexer.attn_q_b": f"{_INDEXER}.wq_b",
}
_V3 = deepseek2.HF["DeepseekV3ForCausalLM"]
_LITE = deepseek2.HF["Glm4MoeLiteForCausalLM"]
HF = {
    "DeepseekV32ForCausalLM": replace(
        _V3,
        arch="deepseek32",
        keys={**_V3.keys, **_KEYS},
        tensors={**_V3.tensors, **_TENSORS},
        fixed={**_V3.fixed, "mlp_bias": (False,)},
        checks=(*_V3.checks, _all_pick),
    ),
    "GlmMoeDsaForCausalLM": replace(
        _LITE,
        arch="glm-dsa",
        keys={
            **_LITE.keys,
            **_KEYS,
            "attention.q_lora_rank": deepseek2.q_rank(2048),
            "attention.indexer.head_count": u32("index_n_heads", default=32),
            "attention.indexer.types": computed("bool[]", _types),
            "expert_count": u32("n_routed_experts", "num_local_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=2048),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
        },
        tensors={**_LITE.tensors, **_TENSORS},
        fixed={**_LITE.fixed, "mlp_bias": (False,)},
        checks=(*_LITE.checks, _all_pick),
        unused=deepseek2.UNUSED,
        predicting=replace(PREDICTING_LAYERS, by_layer={"attention.indexer.types": True}),
    ),
}
