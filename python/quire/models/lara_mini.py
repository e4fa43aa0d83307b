"""Lara Mini (Translated 2026): gated delta rule, and Qwen3's attention, windowed or without RoPE; experts."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    Key,
    Source,
    computed,
    flag,
    squeezed,
    tensor,
    u32,
)
from ..checkpoints.mapping import rows as rows_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, ExpertConfig, Keys, Weights, experts_of, rope_spec
from . import qwen3, qwen35
from .base import MAX_DIM, Block, Decoder, DenseConfig
from .exaone4 import WithoutPositions

ARCHES = ("lara_mini",)


class GatedDelta(qwen35.GatedDelta):
    tiled = False  # files keep the checkpoint's order: neighbouring heads share a key head


class LaraMini(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        n = config.n_layer
        experts = ExpertConfig.read(keys, n, reads=("expert_weights_norm",))
        shared_dim = keys.integer("expert_shared_feed_forward_length", low=1, high=MAX_DIM)
        window = keys.integer("attention.sliding_window", low=1)
        local = [bool(one) for one in keys.integers("attention.sliding_window_pattern", n, high=1)]
        self.is_recurrent = [bool(one) for one in keys.integers("attention.recurrent_layers", n, high=1)]
        self.windows, self.delta = [window if one else 0 for one in local], qwen35.DeltaConfig.read(keys)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = []
        for i, block in enumerate(weights.blocks(n)):
            attention = qwen3.Attention if local[i] else WithoutPositions
            mixer = (
                GatedDelta(config, block, i, self.delta)
                if self.is_recurrent[i]
                else attention(config, block, i, rotation)
            )
            blocks.append(Block(config, block, mixer, experts_of(block, config.dim, experts, shared_dim)))
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.delta.caches(self.is_recurrent, self.config.cache(self.windows))


MODEL = LaraMini

# --- checkpoint ---

_PERIOD = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")


def _are(kind: str) -> Key:
    return computed("bool[]", lambda config: [one == kind for one in _kinds(config)])


def _kinds(config: Fields) -> list[str]:
    n_layer, kinds = config.integer("num_hidden_layers"), [str(kind) for kind in config.items("layer_types")]
    if kinds and (len(kinds) != n_layer or not set(kinds) <= set(_PERIOD)):
        raise UnsupportedError(f"[convert] invalid 'layer_types': expected one of {set(_PERIOD)} for each layer")
    return kinds or [_PERIOD[i % len(_PERIOD)] for i in range(n_layer)]


def _n_values(config: Fields) -> int:
    return config.integer("linear_num_value_heads", 16) * config.integer("linear_value_head_dim", 128)


def _ends(config: Fields) -> list[int]:
    """Return where the parts of the fused projection end: q, k and v; z; b; a."""
    n_keys = config.integer("linear_num_key_heads", 8) * config.integer("linear_key_head_dim", 128)
    n_values, n_head = _n_values(config), config.integer("linear_num_value_heads", 16)
    ends = [0, 2 * n_keys + n_values]
    for n in (n_values, n_head, n_head):
        ends.append(ends[-1] + n)
    return ends


_LAYER = "model.layers.{i}"
_DELTA = f"{_LAYER}.linear_attn"


def _part(i: int) -> Source:
    begin, end = (lambda config, at=at: _ends(config)[at] for at in (i, i + 1))
    return tensor(f"{_DELTA}.in_proj", change=rows_of(begin, end))


HF = {
    "LaraMiniForCausalLM": Checkpoint(
        "lara_mini",
        {
            **{name: key for name, key in DECODER_KEYS.items() if name != "feed_forward_length"},
            "attention.head_count_kv": u32("num_key_value_heads", default=4, low=1),
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.sliding_window": u32("sliding_window", default=512, low=1),
            "attention.sliding_window_pattern": _are("sliding_attention"),
            "attention.recurrent_layers": _are("linear_attention"),
            "ssm.conv_kernel": u32("linear_conv_kernel_dim", default=4),
            "ssm.state_size": u32("linear_key_head_dim", default=128),
            "ssm.group_count": u32("linear_num_key_heads", default=8),
            "ssm.time_step_rank": u32("linear_num_value_heads", default=16),
            "ssm.inner_size": computed("u32", _n_values),
            "expert_count": u32("num_experts", default=128),
            "expert_used_count": u32("num_experts_per_tok", default=4),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=512),
            "expert_shared_feed_forward_length": u32("shared_expert_intermediate_size", default=512),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
        },
        {
            **DECODER_TENSORS,
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.mlp.gate",
            "blk.{i}.ffn_gate_up_exps.weight": f"{_LAYER}.mlp.experts.gate_up_proj",
            "blk.{i}.ffn_down_exps.weight": f"{_LAYER}.mlp.experts.down_proj",
            **qwen3.QK_NORMS,
            "blk.{i}.attn_qkv": _part(0),
            "blk.{i}.attn_gate": _part(1),
            "blk.{i}.ssm_beta": _part(2),
            "blk.{i}.ssm_alpha": _part(3),
            "blk.{i}.ssm_conv1d": tensor(f"{_DELTA}.conv1d", change=squeezed),
            "blk.{i}.ssm_dt.bias": f"{_DELTA}.dt_bias",
            "blk.{i}.ssm_a": tensor(f"{_DELTA}.A_log", change=qwen35.decay),
            "blk.{i}.ssm_norm": f"{_DELTA}.out_norm",
            "blk.{i}.ssm_out": f"{_DELTA}.out_proj",
            **{f"blk.{{i}}.ffn_{x}_shexp": f"{_LAYER}.mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
        },
        fixed={"hidden_act": SILU},
        tied=True,
        unused=("attention_bias",),
    )
}
