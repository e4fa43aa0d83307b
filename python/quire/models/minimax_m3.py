"""MiniMax M3 (MiniMax 2026), text: query and key norms, partial RoPE, experts and MLPs with gpt-oss's activation.

The indexer is not computed.  Contexts of up to ``top_k`` blocks of ``block_size`` tokens (2048 tokens in published
models) do not need it, because it would pick all of them; longer ones are rejected.
"""

from __future__ import annotations

from dataclasses import replace

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    Key,
    Source,
    adding,
    computed,
    factor,
    half,
    n_dense,
    rope_keys,
    tensor,
    u32,
    with_pictures,
)
from ..checkpoints.mapping.rope import rope_of
from ..errors import UnsupportedError
from ..nn import ROUTING, ExpertConfig, Keys, MoE, Step, Tensor, Weights, rope_spec
from .base import Block, Decoder, DenseConfig, Layer
from .qwen3 import Attention

ARCHES = ("minimax-m3",)
ALPHA, LIMIT = 1.702, 7.0  # files have no keys for them
WHY = "contexts are limited to lengths at which the indexer picks every block"


class ClampedMLP:
    def __init__(self, weights: Weights, dim: int, ffn_dim: int, suffix: str = "") -> None:
        self.gate, self.up = (weights.linear(f"ffn_{one}{suffix}", dim, ffn_dim) for one in ("gate", "up"))
        self.down = weights.linear(f"ffn_down{suffix}", ffn_dim, dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(graph.clamped_swiglu(self.gate(x), self.up(x), alpha=ALPHA, limit=LIMIT))


class MiniMaxM3(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", reads=ROUTING)
        n_shared = keys.integer("expert_shared_count", low=1, high=64)
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        weights.ignore("blk.*.index*", WHY)
        for key in ("head_count", "key_length", "local_blocks"):
            keys.without_effect(f"attention.indexer.{key}")
        self.top_k = keys.integer("attention.indexer.top_k", low=1) * keys.integer(
            "attention.indexer.block_size", low=1, high=1 << 16
        )
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        spec = replace_unit(experts)

        def mlp(i: int, block: Weights) -> Layer:
            if i < n_dense_layers:
                return ClampedMLP(block, config.dim, config.ffn_dim)
            shared = ClampedMLP(block, config.dim, n_shared * experts.ffn_dim, "_shexp")
            routed = MoE(block, config.dim, experts.ffn_dim, experts.n, spec)
            return lambda x: routed(x) + shared(x)

        blocks = [
            Block(config, block, Attention(config, block, i, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)
        self.config = replace(config, n_ctx_train=min(config.n_ctx_train, self.top_k))

    def __call__(self, step: Step) -> Tensor:
        if step.n_ctx > self.top_k:
            raise UnsupportedError(
                f"[minimax-m3] n_ctx {step.n_ctx} is too large: block-sparse attention is unsupported, so contexts are "
                f"limited to {self.top_k} tokens (n_ctx={self.top_k})"
            )
        return super().__call__(step)


def replace_unit(experts: ExpertConfig) -> graph.MoeSpec:
    return graph.MoeSpec(
        n_used=experts.n_used,
        gating=experts.gating,
        normalize=experts.normalize,
        scale=experts.scale,
        unit="clamped_swiglu",
        alpha=ALPHA,
        limit=LIMIT,
    )


MODEL = MiniMaxM3

# --- checkpoint ---

_LEGACY = {
    "index_topk_blocks": "sparse_topk_blocks", "index_block_size": "sparse_block_size",
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_local_blocks": "sparse_local_block",
}  # fmt: skip


def _index(name: str, default: int) -> Key:
    """Read a field of the indexer, from a section in published configurations."""

    def read(config: Fields) -> int:
        old = config.inner("sparse_attention_config")
        return old.integer(_LEGACY[name], config.integer(name, default), low=1)

    return computed("u32", read)


def _dense_layers(config: Fields) -> int:
    frequency = config.items("moe_layer_freq")
    return n_dense(config, list(frequency).index(1) if 1 in frequency else len(frequency))


def _shared(config: Fields) -> int:
    size, one = config.integer("shared_intermediate_size", 3072), config.integer("intermediate_size", 3072, low=1)
    if size % one:
        raise UnsupportedError(
            f"[convert] unsupported 'shared_intermediate_size': {size} (expected a multiple of {one})"
        )
    return size // one


def _n_rot(config: Fields) -> int:
    head_dim = config.integer("head_dim", 128)
    n = config.integer("rotary_dim", 64)
    return int(head_dim * rope_of(config).number("partial_rotary_factor", n / head_dim))


def _sparse_layers(config: Fields) -> None:
    """Accept any choice of layers with an indexer, as it does not matter up to the limit of contexts."""
    config.items("layer_types")
    config.inner("sparse_attention_config").items("sparse_attention_freq")


def _two(name: str, which: int) -> Source:
    return tensor(name, change=half(which))


def _one_added(name: str) -> Source:
    return tensor(name, change=adding(1.0))


_LAYER = "model.layers.{i}"
_NORMS = {
    "output_norm": _one_added("model.norm"),
    "blk.{i}.attn_norm": _one_added(f"{_LAYER}.input_layernorm"),
    "blk.{i}.ffn_norm": _one_added(f"{_LAYER}.post_attention_layernorm"),
    "blk.{i}.attn_q_norm": _one_added(f"{_LAYER}.self_attn.q_norm"),
    "blk.{i}.attn_k_norm": _one_added(f"{_LAYER}.self_attn.k_norm"),
}
_MLP, _MOE = f"{_LAYER}.mlp", f"{_LAYER}.block_sparse_moe"
_TEXT = Checkpoint(
    "minimax-m3",
    {
        **DECODER_KEYS,
        "feed_forward_length": u32("dense_intermediate_size", default=12288),
        "attention.key_length": u32("head_dim", default=128),
        "attention.value_length": u32("head_dim", default=128),
        "attention.indexer.top_k": _index("index_topk_blocks", 16),
        "attention.indexer.block_size": _index("index_block_size", 128),
        "attention.indexer.head_count": _index("index_n_heads", 4),
        "attention.indexer.key_length": _index("index_head_dim", 128),
        "attention.indexer.local_blocks": _index("index_local_blocks", 1),
        "rope.dimension_count": computed("u32", _n_rot),
        "expert_count": u32("num_local_experts", "num_experts", default=128),
        "expert_used_count": u32("num_experts_per_tok", default=4),
        "expert_feed_forward_length": u32("intermediate_size", default=3072),
        "expert_shared_count": computed("u32", _shared),
        "expert_gating_func": computed("u32", lambda config: 2),
        "expert_weights_norm": computed("bool", lambda config: True),
        "expert_weights_scale": factor("routed_scaling_factor", default=2.0),
        "leading_dense_block_count": computed("u32", _dense_layers),
    },
    {
        **{name: source for name, source in DECODER_TENSORS.items() if ".ffn_" not in name},
        **_NORMS,
        "blk.{i}.ffn_gate": _two(f"{_MLP}.gate_up_proj", 0),
        "blk.{i}.ffn_up": _two(f"{_MLP}.gate_up_proj", 1),
        "blk.{i}.ffn_down": f"{_MLP}.down_proj",
        "blk.{i}.ffn_gate_inp": f"{_MLP}.gate",
        "blk.{i}.exp_probs_b.bias": f"{_MLP}.gate.e_score_correction_bias",
        "blk.{i}.ffn_gate_exps.weight": _two(f"{_MLP}.experts.gate_up_proj", 0),
        "blk.{i}.ffn_up_exps.weight": _two(f"{_MLP}.experts.gate_up_proj", 1),
        "blk.{i}.ffn_down_exps.weight": f"{_MLP}.experts.down_proj",
        "blk.{i}.ffn_gate_shexp": _two(f"{_MLP}.shared_experts.gate_up_proj", 0),
        "blk.{i}.ffn_up_shexp": _two(f"{_MLP}.shared_experts.gate_up_proj", 1),
        "blk.{i}.ffn_down_shexp": f"{_MLP}.shared_experts.down_proj",
    },
    fixed={"hidden_act": (*SILU, "swigluoai"), "swiglu_alpha": (ALPHA,), "swiglu_limit": (LIMIT,)},
    checks=(_sparse_layers,),
    rope=lambda config: rope_keys(config, 5e6),
    unused=("router_jitter_noise", "sparse_attention_config", "use_mtp", "num_mtp_modules", "mtp_transformer_layers"),
    ignored=("*.self_attn.index*",),
)
HF = {
    "MiniMaxM3VLForCausalLM": _TEXT,
    "MiniMaxM3SparseForConditionalGeneration": with_pictures(
        replace(
            _TEXT,
            tensors={
                **DECODER_TENSORS,
                **_NORMS,
                "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
                "blk.{i}.exp_probs_b.bias": f"{_MOE}.e_score_correction_bias",
                "blk.{i}.ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
                "blk.{i}.ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
                "blk.{i}.ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
                **{f"blk.{{i}}.ffn_{one}_shexp": f"{_MOE}.shared_experts.{one}_proj" for one in ("gate", "up", "down")},
            },
            ignored=(*_TEXT.ignored, "*patch_merge_mlp.*"),
        )
    ),
}
