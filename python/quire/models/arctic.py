"""Arctic (Snowflake 2024): Llama with a narrow MLP, and experts in parallel that read the layer's input."""

from __future__ import annotations

from ..checkpoints.mapping import SILU, Checkpoint, f32, no_windows, u32
from ..nn import ExpertConfig, GatedMLP, Keys, MoE, Step, Tensor, Weights, frequency_factors, rope_spec
from . import base, llama
from .base import Decoder, DenseConfig

ARCHES = ("arctic",)


class Block(base.Block):
    """Attention and an MLP of the model's width, with experts beside them."""

    def __init__(
        self, config: DenseConfig, weights: Weights, attention: llama.Attention, experts: ExpertConfig
    ) -> None:
        super().__init__(config, weights, attention, GatedMLP(weights, config.dim, config.dim))
        self.experts_norm = weights.norm("ffn_norm_exps", config.dim, config.eps)
        self.experts = MoE(weights, config.dim, experts.ffn_dim, experts.n, experts.spec())

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return super().__call__(x, step) + self.experts(self.experts_norm(x))


class Arctic(Decoder):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        blocks = [
            Block(config, block, llama.Attention(config, block, i, rotation), experts)
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Arctic

# --- checkpoint ---

_LAYER = "model.layers.{i}"
_MOE, _MLP = f"{_LAYER}.block_sparse_moe", f"{_LAYER}.residual_mlp"
_UNITS = {"gate": "w1", "up": "w3", "down": "w2"}
HF = {
    "ArcticForCausalLM": Checkpoint(
        "arctic",
        {
            **llama.KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "expert_count": u32("num_local_experts", default=8),
            "expert_used_count": u32("num_experts_per_tok", default=1),
        },
        {
            **llama.TENSORS,
            "blk.{i}.ffn_norm": f"{_LAYER}.residual_layernorm",
            "blk.{i}.ffn_norm_exps": f"{_LAYER}.post_attention_layernorm",
            **{f"blk.{{i}}.ffn_{ours}": f"{_MLP}.{theirs}" for ours, theirs in _UNITS.items()},
            "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
            **{f"blk.{{i}}.ffn_{ours}_exps": f"{_MOE}.experts.{{e}}.{theirs}" for ours, theirs in _UNITS.items()},
        },
        fixed={
            "hidden_act": SILU,
            "use_residual": (True,),
            "parallel_attn_mlp_res": (True,),
            "moe_layer_frequency": (1,),
            "attention_bias": (False,),
            "quantization": (None,),
        },
        checks=(no_windows,),
        unused=(
            "moe_*capacity*",
            "moe_token_dropping",
            "enable_expert_tensor_parallelism",
        ),
    )
}
