"""Hunyuan 3 (Tencent 2026): Qwen3's attention, sigmoid routing, a shared expert, first layers dense."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    PREDICTING_LAYERS,
    SILU,
    Checkpoint,
    Fields,
    PredictingLayers,
    computed,
    f32,
    factor,
    kinds_of_mlps,
    rope_keys,
    u32,
)
from ..nn import ROUTING, ExpertConfig, GatedMLP, Keys, Weights, experts_of, rope_spec
from .base import MAX_DIM, Block, Decoder, DenseConfig, Layer, layers_left_out
from .qwen3 import QK_NORMS, Attention

ARCHES = ("hy_v3",)


class HunyuanV3(Decoder):
    """A layer has experts if the file has its router."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        config = replace(config, n_layer=config.n_layer - layers_left_out(keys, weights, config.n_layer, n_used=1))
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", normalize=False, reads=ROUTING)
        shared_dim = keys.integer("expert_shared_feed_forward_length", experts.ffn_dim, low=1, high=MAX_DIM)

        def mlp(block: Weights) -> Layer:
            routed = block.has("ffn_gate_inp.weight")
            return (
                experts_of(block, config.dim, experts, shared_dim)
                if routed
                else GatedMLP(block, config.dim, config.ffn_dim)
            )

        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), mlp(block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)
        self.add_predictor(
            weights, lambda block: Block(config, block, Attention(config, block, 0, rotation), mlp(block))
        )


MODEL = HunyuanV3

# --- checkpoint ---


def _shared_dim(config: Fields) -> int:
    return config.integer("moe_intermediate_size", 1536) * config.integer("num_shared_experts", 1, low=1)


def _kinds_of_layers(config: Fields) -> None:
    """Check the kinds of layers; the checkpoint's tensors show which ones have experts."""
    kinds_of_mlps(config)


_MLP = "model.layers.{i}.mlp"
HF = {
    "HYV3ForCausalLM": Checkpoint(
        "hy_v3",
        {
            **DECODER_KEYS,
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "expert_count": u32("num_experts", "num_local_experts", default=192),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1536),
            "expert_shared_feed_forward_length": computed("u32", _shared_dim),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_scale": factor("router_scaling_factor", default=2.826),
            "expert_weights_norm": computed("bool", lambda config: True),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **QK_NORMS,
            "blk.{i}.ffn_gate_inp": f"{_MLP}.router.gate",
            "blk.{i}.exp_probs_b": f"{_MLP}.expert_bias",
            **{f"blk.{{i}}.ffn_{x}_shexp": f"{_MLP}.shared_mlp.{x}_proj" for x in ("gate", "up", "down")},
        },
        fixed={"hidden_act": SILU, "mlp_bias": (False,), "attention_bias": (False,), "route_norm": (True, None)},
        checks=(_kinds_of_layers,),
        rope=lambda config: rope_keys(config, 11158840.0),
        predicting=PredictingLayers(
            {**PREDICTING_LAYERS.tensors, "nextn.shared_head_norm": "model.layers.{i}.final_layernorm"}
        ),
        unused=("enable_moe_fp32_combine", "num_nextn_predict_layers"),
    )
}
