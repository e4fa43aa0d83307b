"""Falcon (Almazrouei et al. 2023): multi-query or grouped-query attention, attention and MLP in parallel."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import Array, Checkpoint, Fields, computed, f32, tensor, u32
from ..errors import UnsupportedError
from ..nn import MLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import CLASSIC_KEYS, EPS, Attention, LayerNormDecoder, ParallelBlock

ARCHES = ("falcon",)


class FalconBlock(ParallelBlock):
    """A parallel block; if it has two norms (new architecture), ``attn_norm`` is the MLP's."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention, mlp: MLP) -> None:
        super().__init__(config, weights, attention, mlp, mlp_norm="attn_norm_2")
        if self.ffn_norm is not None:
            self.attn_norm, self.ffn_norm = self.ffn_norm, self.attn_norm


class Falcon(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            FalconBlock(
                config, block, Attention(config, block, i, rotation), MLP(block, config.dim, config.ffn_dim, "gelu")
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Falcon

# --- checkpoint ---


def _is_old(config: Fields) -> bool:
    """Return whether config.json is one of RefinedWeb, Falcon's first name."""
    return config.has("n_head")


def _n_head(config: Fields) -> int:
    return config.integer("n_head" if _is_old(config) else "num_attention_heads", low=1)


def _is_new_architecture(config: Fields) -> bool:
    """Return whether layers have Falcon 40B's two norms; RefinedWeb's fields tell it by several heads of k and v."""
    return config.flag("new_decoder_architecture", _is_old(config) and config.has("n_head_kv"))


def _n_kv_head(config: Fields) -> int:
    several = config.integer("n_head_kv" if _is_old(config) else "num_kv_heads", _n_head(config), low=1)
    is_new, has_one = _is_new_architecture(config), config.flag("multi_query", True)
    return several if is_new or not has_one else 1


def _in_order(x: Array, config: Fields) -> Array:
    """Reorder rows to all of q, then k, then v: checkpoints store each k and v head after the q heads that share it."""
    import numpy as np

    n_head, n_kv_head = _n_head(config), _n_kv_head(config)
    n_shared = n_head // n_kv_head
    split = x.reshape(n_kv_head, n_shared + 2, x.shape[0] // n_kv_head // (n_shared + 2), *x.shape[1:])
    parts = (split[:, :n_shared], split[:, n_shared : n_shared + 1], split[:, n_shared + 1 :])
    return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts])


def _side_by_side(config: Fields) -> None:
    if not config.flag("parallel_attn", True):
        raise UnsupportedError("[convert] unsupported 'parallel_attn': false")
    is_new = _is_new_architecture(config)
    n_norms = config.integer("num_ln_in_parallel_attn", 2 if is_new else 1)
    if n_norms > 2 or (not is_new and n_norms != 1):
        raise UnsupportedError(f"[convert] unsupported 'num_ln_in_parallel_attn': {n_norms}")
    if not is_new and _n_kv_head(config) not in (1, _n_head(config)):
        raise UnsupportedError(
            f"[convert] unsupported 'num_kv_heads': {_n_kv_head(config)} (the old architecture needs one for each head)"
        )


def _ffn_dim(config: Fields) -> int:
    return config.integer("ffn_hidden_size", 4 * config.integer("hidden_size"), low=1)


_LAYER = "transformer.h.{i}"
_FALCON = Checkpoint(
    "falcon",
    {
        **CLASSIC_KEYS,
        "context_length": u32("max_position_embeddings", default=2048),
        "feed_forward_length": computed("u32", _ffn_dim),
        "attention.head_count_kv": computed("u32", _n_kv_head),
        "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
    },
    {
        "token_embd": "transformer.word_embeddings",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        # The new architecture has two norms; in GGUF the MLP's has the name of the single norm of the old one.
        "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
        "blk.{i}.attn_norm.weight": f"{_LAYER}.ln_mlp.weight",
        "blk.{i}.attn_norm.bias": f"{_LAYER}.ln_mlp.bias",
        "blk.{i}.attn_norm_2": f"{_LAYER}.ln_attn",
        "blk.{i}.attn_qkv": tensor(f"{_LAYER}.self_attention.query_key_value", change=_in_order),
        "blk.{i}.attn_output": f"{_LAYER}.self_attention.dense",
        "blk.{i}.ffn_up": f"{_LAYER}.mlp.dense_h_to_4h",
        "blk.{i}.ffn_down": f"{_LAYER}.mlp.dense_4h_to_h",
    },
    fixed={"alibi": (False,), "activation": ("gelu",), "bias": (False,), "num_key_value_heads": (None,)},
    checks=(_side_by_side,),
    tied=True,
    base="transformer.",
)
HF = {
    "FalconForCausalLM": _FALCON,
    "RWForCausalLM": replace(
        _FALCON,
        keys={
            **_FALCON.keys,
            "block_count": u32("n_layer", "num_hidden_layers"),
            "attention.head_count": computed("u32", _n_head),
        },
        fixed={**_FALCON.fixed, "apply_residual_connection_post_layernorm": (False,)},
    ),
}
