"""Kolibri 1 (Aleph Alpha 2026): EXAONE 4's attention between norms; sigmoids of the experts with the best scores."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
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
from ..nn import CacheSpec, ExpertConfig, Keys, MoE, MoeSpec, SharedExpert, Together, Weights, rope_spec
from . import qwen3
from .base import MAX_DIM, Decoder, DenseConfig, SandwichBlock
from .base import local_layers as locals_of
from .exaone4 import WithoutPositions

ARCHES = ("kolibri1",)
PERIOD = 5  # every fifth layer has full attention


class Kolibri1(Decoder):
    """Full-attention layers have no RoPE."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, reads=("expert_weights_norm",))
        shared_dim = keys.integer("expert_shared_feed_forward_length", low=1, high=MAX_DIM)
        spec = MoeSpec(n_used=experts.n_used, gating="sigmoid_of_chosen", normalize=experts.normalize)
        window = keys.integer("attention.sliding_window", low=1)
        local = locals_of(keys, config.n_layer, PERIOD)
        self.windows = [window if one else 0 for one in local]
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = []
        for i, block in enumerate(weights.blocks(config.n_layer)):
            attention = (qwen3.Attention if local[i] else WithoutPositions)(config, block, i, rotation)
            routed = MoE(block, config.dim, experts.ffn_dim, experts.n, spec)
            mlp = Together(routed, SharedExpert(block, config.dim, shared_dim))
            blocks.append(SandwichBlock(config, block, attention, mlp))
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Kolibri1

# --- checkpoint ---


def _some_local(config: Fields) -> None:
    """Require a window: without one, transformers rotates in all layers."""
    has_windows(config)
    if not any(local_layers(config, PERIOD)):
        raise UnsupportedError("[convert] unsupported 'layer_types': expected sliding_attention for some layers")


_LAYER = "model.layers.{i}"
HF = {
    "Kolibri1ForCausalLM": Checkpoint(
        "kolibri1",
        {
            **{name: key for name, key in DECODER_KEYS.items() if name != "feed_forward_length"},
            "attention.head_count_kv": u32("num_key_value_heads", default=4, low=1),
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.sliding_window": u32("sliding_window", default=513, low=1),
            "attention.sliding_window_pattern": computed("bool[]", lambda config: local_layers(config, PERIOD)),
            "expert_count": u32("num_local_experts", "num_experts", default=384),
            "expert_used_count": u32("num_experts_per_tok", default=6),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=512),
            "expert_shared_feed_forward_length": u32("shared_expert_intermediate_size", default=512),
            "expert_weights_norm": flag("norm_topk_prob", default=False),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **SHARED_EXPERT_TENSORS,
            **qwen3.QK_NORMS,
            "blk.{i}.exp_probs_b.bias": f"{_LAYER}.moe.router.expert_bias",
            "blk.{i}.post_attention_norm": f"{_LAYER}.post_attn_norm",
            "blk.{i}.post_ffw_norm": f"{_LAYER}.post_ffn_norm",
        },
        fixed={"hidden_act": SILU},
        checks=(_some_local,),
    )
}
