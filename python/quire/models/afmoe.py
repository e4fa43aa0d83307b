"""AFMoE (Arcee AI 2025), Trinity: gated attention, windowed or without RoPE; bias-corrected sigmoid routing."""

from __future__ import annotations

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    factor,
    has_windows,
    local_layers,
    u32,
)
from ..errors import UnsupportedError
from ..nn import (
    ROUTING,
    CacheSpec,
    ExpertConfig,
    Keys,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    rope,
    rope_spec,
)
from . import qwen3
from .base import Decoder, DenseConfig, SandwichBlock, dense_then_experts
from .base import local_layers as locals_of

ARCHES = ("afmoe",)
PERIOD = 4  # every fourth layer has full attention


class Attention(qwen3.Attention):
    """Multiplies the heads' outputs by the sigmoid of a projection of the input.  ``rotates``: with RoPE."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, *, rotates: bool) -> None:
        super().__init__(config, weights, layer, rotation)
        self.gate = weights.linear("attn_gate", config.dim, config.n_head * config.v_head_dim)
        self.rotates = rotates

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.q_norm(self.q(x).heads(self.n_head)), self.k_norm(self.k(x).heads(self.n_kv_head))
        if self.rotates:
            q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        y = step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale)
        return self.o(y * graph.sigmoid(self.gate(x)))


class Afmoe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", normalize=False, reads=ROUTING)
        n_dense = keys.integer("leading_dense_block_count", 0)
        n_shared = keys.integer("expert_shared_count", high=64)
        window = keys.integer("attention.sliding_window", low=1)
        local = locals_of(keys, config.n_layer, PERIOD)
        self.windows = [window if one else 0 for one in local]
        mlp = dense_then_experts(config, experts, n_shared * experts.ffn_dim, n_dense)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            SandwichBlock(config, block, Attention(config, block, i, rotation, rotates=local[i]), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.config.dim**0.5, step)


MODEL = Afmoe

# --- checkpoint ---


def _is_scaled(config: Fields) -> None:
    """Require scaled embeddings: files have no key for it, and the model always scales."""
    if not config.flag("mup_enabled", False):
        raise UnsupportedError("[convert] unsupported 'mup_enabled': false")
    has_windows(config)


def _pattern(config: Fields) -> list[bool] | None:
    """Return the layers with windows, or None for the usual period, which is not written."""
    local = local_layers(config, config.integer("global_attn_every_n_layers", PERIOD, low=1))
    return None if local == [bool((i + 1) % PERIOD) for i in range(len(local))] else local


_LAYER = "model.layers.{i}"
HF = {
    "AfmoeForCausalLM": Checkpoint(
        "afmoe",
        {
            **DECODER_KEYS,
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.sliding_window": u32("sliding_window", default=1024, low=1),
            "attention.sliding_window_pattern": computed("bool[]", _pattern),
            "expert_count": u32("num_experts", "num_local_experts", default=64),
            "expert_used_count": u32("num_experts_per_tok", default=6),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1408),
            "expert_shared_count": u32("num_shared_experts", default=2),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_scale": factor("route_scale", default=1.0),
            "expert_weights_norm": computed("bool", lambda config: True),
            "leading_dense_block_count": u32("num_dense_layers", default=1),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **qwen3.QK_NORMS,
            "blk.{i}.attn_gate": f"{_LAYER}.self_attn.gate_proj",
            "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.ffn_norm": f"{_LAYER}.pre_mlp_layernorm",
            "blk.{i}.post_ffw_norm": f"{_LAYER}.post_mlp_layernorm",
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.mlp.router.gate",
            "blk.{i}.exp_probs_b.bias": f"{_LAYER}.mlp.expert_bias",
            **SHARED_EXPERT_TENSORS,
        },
        fixed={
            "hidden_act": SILU,
            "score_func": ("sigmoid", None),
            "route_norm": (True, None),
            "n_group": (1, None),
            "topk_group": (1, None),
            "attention_bias": (False, None),
        },
        checks=(_is_scaled,),
        unused=("load_balance_coeff", "num_expert_groups", "num_limited_groups", "use_grouped_mm"),
    )
}
