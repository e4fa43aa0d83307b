"""GLM 4.5 and later (Zeng et al. 2025): grouped sigmoid routing with bias correction, shared experts.

The first layers are dense.  A layer after the last one predicts later tokens.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    PREDICTING_LAYERS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    factor,
    flag,
    only_with,
    tensor,
    u32,
    with_pictures,
)
from ..checkpoints.mapping.rope import mrope_keys, partial_rotary, rope_keys, rope_of
from ..nn import (
    ROUTING,
    ExpertConfig,
    Keys,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    rope,
    rope_spec,
)
from .base import Decoder, DenseConfig, Layer, Mixer, dense_then_experts, layers_left_out
from .glm4 import sections_of

ARCHES = ("glm4moe",)


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim)
        has_norms = weights.has("attn_q_norm.weight")  # smaller models have no query and key norms
        self.q_norm = weights.norm("attn_q_norm", config.head_dim, config.eps) if has_norms else None
        self.k_norm = weights.norm("attn_k_norm", config.head_dim, config.eps) if has_norms else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head)
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rope(q, step.positions, self.rotation), rope(k, step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.norm("post_attention_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class Glm4Moe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        config = replace(config, n_layer=config.n_layer - layers_left_out(keys, weights, config.n_layer, n_used=1))
        experts = ExpertConfig.read(
            keys, config.n_layer, gating="sigmoid", normalize=False, grouped=True, reads=ROUTING
        )
        n_dense = keys.integer("leading_dense_block_count", 0, high=config.n_layer)
        n_shared = keys.integer("expert_shared_count", high=64)
        mlp = dense_then_experts(config, experts, n_shared * experts.ffn_dim, n_dense)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", sections=sections_of(keys), take_turns=False)
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)
        self.add_predictor(
            weights,
            lambda block: Block(config, block, Attention(config, block, 0, rotation), mlp(config.n_layer, block)),
        )


MODEL = Glm4Moe

# --- checkpoint ---


def _n_rot(config: Fields) -> int:
    head_dim = config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads", low=1))
    rope = rope_of(config)
    return int(head_dim * rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 0.5)))


_LAYER = "model.layers.{i}"
_NORM = only_with("use_qk_norm", default=False)
_BIAS = only_with("attention_bias", default=False, biases=True)
_TEXT = Checkpoint(
    "glm4moe",
    {
        **DECODER_KEYS,
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "rope.dimension_count": computed("u32", _n_rot),
        "expert_count": u32("n_routed_experts", "num_local_experts", default=128),
        "expert_used_count": u32("num_experts_per_tok", default=8),
        "expert_feed_forward_length": u32("moe_intermediate_size", default=1408),
        "expert_shared_count": u32("n_shared_experts", default=1),
        "expert_group_count": u32("n_group", default=1, low=1),
        "expert_group_used_count": u32("topk_group", default=1, low=1),
        "expert_gating_func": computed("u32", lambda config: 2),
        "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
        "expert_weights_norm": flag("norm_topk_prob", default=True),
        "leading_dense_block_count": u32("first_k_dense_replace", default=1),
        "nextn_predict_layers": computed("u32", lambda config: 0),
    },
    {
        **{name: source for name, source in DECODER_TENSORS.items() if "ffn_norm" not in name},
        **EXPERT_TENSORS,
        **{f"blk.{{i}}.attn_{x}": tensor(f"{_LAYER}.self_attn.{x}_proj", change=_BIAS) for x in "qkv"},
        "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{i}.attn_q_norm": tensor(f"{_LAYER}.self_attn.q_norm", change=_NORM),
        "blk.{i}.attn_k_norm": tensor(f"{_LAYER}.self_attn.k_norm", change=_NORM),
        "blk.{i}.exp_probs_b.bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
        **SHARED_EXPERT_TENSORS,
    },
    fixed={"hidden_act": SILU},
    unused=("attention_bias", "use_qk_norm", "num_nextn_predict_layers", "num_mtp_layers"),
    predicting=PREDICTING_LAYERS,
)
_SOLAR = replace(
    _TEXT,
    keys={
        **_TEXT.keys,
        "rope.dimension_count": computed("u32", lambda config: partial_rotary(config, config.integer("head_dim", 128))),
        "expert_used_count": u32("num_experts_per_tok", default=8),
        "expert_feed_forward_length": u32("moe_intermediate_size", default=1280),
        "feed_forward_length": u32("intermediate_size", "moe_intermediate_size", default=1280),
        "attention.key_length": u32("head_dim", default=128),
        "attention.value_length": u32("head_dim", default=128),
        "leading_dense_block_count": computed("u32", lambda config: 0),
    },
    rope=lambda config: rope_keys(config, 1e6),
    unused=(*_TEXT.unused, "first_k_dense_replace", "intermediate_size"),
)
# The rotated part of a head is the same; its pairs also rotate by height and width.
_VISION = with_pictures(
    replace(
        _TEXT,
        keys={**_TEXT.keys, "attention.head_count_kv": u32("num_key_value_heads", default=8, low=1)},
        tensors={
            **_TEXT.tensors,
            **{
                f"blk.{{i}}.attn_{x}": tensor(
                    f"{_LAYER}.self_attn.{x}_proj", change=only_with("attention_bias", default=True, biases=True)
                )
                for x in "qkv"
            },
        },
        rope=mrope_keys(10000.0, (8, 12, 12)),
        ignored=("model.visual.*", "visual.*"),
    )
)
HF = {
    "Glm4MoeForCausalLM": _TEXT,
    "Glm4vMoeForConditionalGeneration": _VISION,
    "SolarOpenForCausalLM": _SOLAR,
}
