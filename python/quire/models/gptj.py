"""GPT-J (Wang and Komatsuzaki 2021), CodeGen (Nijkamp et al. 2022): attention and MLP in parallel, interleaved RoPE."""

from __future__ import annotations

from ..checkpoints.mapping import Array, Checkpoint, Fields, computed, f32, tensor, u32
from ..nn import MLP, Keys, Weights, rope_spec
from .base import DenseConfig
from .classic import EPS, GELU_TANH, Attention, LayerNormDecoder, ParallelBlock

ARCHES = ("gptj",)


class GPTJ(LayerNormDecoder):
    """Files and checkpoints store q and k interleaved."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        blocks = [
            ParallelBlock(
                config,
                block,
                Attention(config, block, i, rotation),
                MLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = GPTJ

# --- checkpoint ---


def _ffn_dim(config: Fields) -> int:
    return config.integer("n_inner", 4 * config.integer("n_embd", 4096), low=1)


def _in_order(x: Array, config: Fields) -> Array:
    """Reorder CodeGen's fused rows, which come in four parts, each with the q, v and k of its heads."""
    parts = x.reshape(4, 3, x.shape[0] // 12, x.shape[1])
    ordered: Array = parts[:, [0, 2, 1]].swapaxes(0, 1).reshape(x.shape)
    return ordered


_LAYER = "transformer.h.{i}"
_KEYS = {
    "context_length": u32("n_positions", default=2048, low=1),
    "embedding_length": u32("n_embd", default=4096),
    "block_count": u32("n_layer", default=28),
    "feed_forward_length": computed("u32", _ffn_dim),
    "attention.head_count": u32("n_head", default=16, low=1),
    "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
    "rope.dimension_count": u32("rotary_dim", default=64, low=2),
}
_TENSORS = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
    "blk.{i}.attn_output": f"{_LAYER}.attn.out_proj",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.fc_in",
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.fc_out",
}
_MASKS = ("*h.*.attn.bias", "*h.*.attn.masked_bias", "*h.*.attn.causal_mask")  # saved by older versions
HF = {
    "GPTJForCausalLM": Checkpoint(
        "gptj",
        _KEYS,
        {**_TENSORS, **{f"blk.{{i}}.attn_{one}": f"{_LAYER}.attn.{one}_proj" for one in "qkv"}},
        fixed={"activation_function": GELU_TANH, "scale_attn_weights": (True,), "rotary": (True,)},
        rope=None,
        unused=("n_ctx", "summary_*"),
        ignored=_MASKS,
        base="transformer.",
    ),
    "CodeGenForCausalLM": Checkpoint(
        "gptj",
        _KEYS,
        {**_TENSORS, "blk.{i}.attn_qkv": tensor(f"{_LAYER}.attn.qkv_proj", change=_in_order)},
        fixed={"activation_function": GELU_TANH, "scale_attn_weights": (True,), "rotary": (True,)},
        rope=None,
        unused=("n_ctx", "summary_*"),
        ignored=_MASKS,
        base="transformer.",
    ),
}
