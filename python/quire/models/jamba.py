"""Jamba (Lieber et al. 2024): Mamba with norms in most layers, attention in some, experts in every other MLP."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    only_with,
    tensor,
    u32,
)
from ..nn import CacheSpec, ExpertConfig, GatedMLP, Keys, MoE, Weights
from .base import MAX_HEADS, Block, Decoder, DenseConfig, Layer, Mixer, by_layer
from .mamba import MambaMixer, Selection
from .mamba2 import Attention, convolution, decay

ARCHES = ("jamba",)


class Jamba(Decoder):
    """Layers with a recurrent state have 0 heads of k and v.  A layer has experts if the file has its router."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.attends, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        config = DenseConfig.read(keys, n_vocab, n_kv_head=n_kv_head)
        self.selection = selection = Selection.read(keys)
        experts = ExpertConfig.read(keys, config.n_layer, normalize=False, ffn_dim=config.ffn_dim)
        blocks = []
        for i, block in enumerate(weights.blocks(config.n_layer)):
            mixer: Mixer = (
                Attention(config, block, i)
                if self.attends[i]
                else MambaMixer(block, config.dim, i, selection, config.eps)
            )
            routes = block.has("ffn_gate_inp.weight")
            mlp: Layer = (
                MoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec())
                if routes
                else GatedMLP(block, config.dim, config.ffn_dim)
            )
            blocks.append(Block(config, block, mixer, mlp))
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        attention = self.config.cache()
        return [
            spec if attends else self.selection.cache() for attends, spec in zip(self.attends, attention, strict=True)
        ]


MODEL = Jamba

# --- checkpoint ---


def _kv_heads(config: Fields) -> list[int]:
    n_kv_head = config.integer("num_key_value_heads", config.integer("num_attention_heads"), low=1)
    period, offset = config.integer("attn_layer_period", 8, low=1), config.integer("attn_layer_offset", 4)
    return [n_kv_head if i % period == offset else 0 for i in range(config.integer("num_hidden_layers"))]


def _inner_size(config: Fields) -> int:
    return config.integer("mamba_expand", 2) * config.integer("hidden_size")


def _dt_rank(config: Fields) -> int:
    if config.value("mamba_dt_rank") in (None, "auto"):
        return -(-config.integer("hidden_size") // 16)
    return config.integer("mamba_dt_rank")


_LAYER = "model.layers.{i}"
_MIXER, _MLP = f"{_LAYER}.mamba", f"{_LAYER}.feed_forward"
_WITH_BIAS = only_with("mamba_proj_bias", default=False, biases=True)
HF = {
    "JambaForCausalLM": Checkpoint(
        "jamba",
        {
            **{name: key for name, key in DECODER_KEYS.items() if not name.endswith(("key_length", "value_length"))},
            "attention.head_count_kv": computed("i32[]", _kv_heads),
            "expert_count": u32("num_local_experts", "num_experts", default=16),
            "expert_used_count": u32("num_experts_per_tok", default=2),
            "ssm.conv_kernel": u32("mamba_d_conv", default=4),
            "ssm.inner_size": computed("u32", _inner_size),
            "ssm.state_size": u32("mamba_d_state", default=16),
            "ssm.time_step_rank": computed("u32", _dt_rank),
        },
        {
            **DECODER_TENSORS,
            "output_norm": "model.final_layernorm",
            "blk.{i}.ffn_norm": f"{_LAYER}.pre_ff_layernorm",
            "blk.{i}.ssm_in": tensor(f"{_MIXER}.in_proj", change=_WITH_BIAS),
            "blk.{i}.ssm_conv1d": tensor(f"{_MIXER}.conv1d", change=convolution("mamba_conv_bias")),
            "blk.{i}.ssm_x": f"{_MIXER}.x_proj",
            "blk.{i}.ssm_dt": f"{_MIXER}.dt_proj",
            "blk.{i}.ssm_a": tensor(f"{_MIXER}.A_log", change=decay),
            "blk.{i}.ssm_d": f"{_MIXER}.D",
            "blk.{i}.ssm_out": tensor(f"{_MIXER}.out_proj", change=_WITH_BIAS),
            **{f"blk.{{i}}.ssm_{part}_norm": f"{_MIXER}.{part}_layernorm" for part in ("dt", "b", "c")},
            **{f"blk.{{i}}.ffn_{part}": f"{_MLP}.{part}_proj" for part in ("gate", "up", "down")},
            **{f"blk.{{i}}.ffn_{part}_exps": f"{_MLP}.experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")},
            "blk.{i}.ffn_gate_inp": f"{_MLP}.router",
        },
        fixed={"hidden_act": SILU},
        rope=None,
        unused=(
            "expert_layer_period", "expert_layer_offset", "use_mamba_kernels", "use_mambapy", "use_associative_scan",
            "mamba_conv_bias", "mamba_proj_bias", "num_logits_to_keep", "calc_logits_for_entire_prompt",
            "mamba_inner_layernorms",
        ),
    )
}  # fmt: skip
