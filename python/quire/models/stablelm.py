"""StableLM (Bellagente et al. 2024): layer norms, a gated MLP, partial RoPE."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import DECODER_TENSORS, SILU, Array, Checkpoint, Fields, f32, flag, tensor, u32
from ..errors import UnsupportedError
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import CLASSIC_KEYS, EPS, Block, HeadNorms, LayerNormDecoder, ParallelBlock, n_rotated, unless_unbiased

ARCHES = ("stablelm",)


class StableLM(LayerNormDecoder):
    """Attention and MLP run in parallel if the file has no norm for the MLP; the key is not used."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        keys.without_effect("use_parallel_residual")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        block_type = Block if weights.has("blk.0.ffn_norm.weight") else ParallelBlock
        blocks = [
            block_type(
                config, block, HeadNorms(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = StableLM

# --- checkpoint ---


def _between(x: Array, config: Fields) -> Array:
    if config.flag("use_parallel_residual", False):
        raise UnsupportedError("[convert] 'use_parallel_residual' is true, but blocks have a second norm")
    return x


def _head_norm(x: Array, config: Fields) -> Array:
    if not config.flag("qk_layernorm", False):
        raise UnsupportedError("[convert] 'qk_layernorm' is false, but the checkpoint has such norms")
    return x


_LAYER = "model.layers.{i}"
_BIASES = unless_unbiased("use_qkv_bias", default=False)
_STABLELM = Checkpoint(
    "stablelm",
    {
        **CLASSIC_KEYS,
        "attention.head_count_kv": u32("num_key_value_heads", default=32, low=1),
        "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
        "rope.dimension_count": n_rotated(0.25),
        "use_parallel_residual": flag("use_parallel_residual", default=False),
    },
    {
        **DECODER_TENSORS,
        "blk.{i}.ffn_norm": tensor(f"{_LAYER}.post_attention_layernorm", change=_between),
        "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_BIASES),
        "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_BIASES),
        "blk.{i}.attn_v": tensor(f"{_LAYER}.self_attn.v_proj", change=_BIASES),
        "blk.{i}.attn_q_norm": tensor(f"{_LAYER}.self_attn.q_layernorm.norms.{{e}}", change=_head_norm),
        "blk.{i}.attn_k_norm": tensor(f"{_LAYER}.self_attn.k_layernorm.norms.{{e}}", change=_head_norm),
    },
    fixed={"hidden_act": SILU},
    unused=("use_qkv_bias", "qk_layernorm"),
)
HF = {
    "StableLmForCausalLM": _STABLELM,
    "StableLMEpochForCausalLM": replace(  # the first name
        _STABLELM,
        keys={
            **_STABLELM.keys,
            "attention.layer_norm_epsilon": f32("norm_eps", default=1e-5),
            "rope.dimension_count": n_rotated(0.25, name="rope_pct"),
        },
        fixed={**_STABLELM.fixed, "rotary_scaling_factor": (1.0, None)},
    ),
}
