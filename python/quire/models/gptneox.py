"""GPT-NeoX (Black et al. 2022) and Pythia: attention and MLP in parallel, partial RoPE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, flag, rope_keys, tensor
from ..checkpoints.mapping.rope import Entry, theta_of
from ..errors import UnsupportedError
from ..nn import MLP, Keys, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import (
    CLASSIC_KEYS,
    EPS,
    GELU_TANH,
    Attention,
    Block,
    LayerNormDecoder,
    ParallelBlock,
    in_order,
    n_rotated,
    unless_unbiased,
)

if TYPE_CHECKING:
    from .._native.graph import Activation

ARCHES = ("gptneox",)
_ACTIVATIONS: Mapping[str, Activation] = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}


class GPTNeoX(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        block_type = ParallelBlock if keys.flag("use_parallel_residual") else Block
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        activation = _ACTIVATIONS.get(kind := keys.text("hidden_activation", "gelu"))
        if activation is None:
            raise UnsupportedError(f"[{keys.arch}] unsupported hidden_activation '{kind}': expected gelu or gelu_tanh")
        blocks = [
            block_type(
                config, block, Attention(config, block, i, rotation), MLP(block, config.dim, config.ffn_dim, activation)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = GPTNeoX

# --- checkpoint ---


def _rope(config: Fields) -> Iterator[Entry]:
    base = config.number("rotary_emb_base", 10000.0)
    if config.has("rope_theta") and theta_of(config) != base and not config.has("rope_parameters"):
        raise UnsupportedError(f"[convert] 'rope_theta' is {theta_of(config)}, but 'rotary_emb_base' is {base}")
    yield from rope_keys(config, base)


def _activation(config: Fields) -> str | None:
    """Return the key's value, or None for the usual activation, which is not written."""
    return "gelu_tanh" if config.text("hidden_act", "gelu") in GELU_TANH else None


_LAYER = "gpt_neox.layers.{i}"
HF = {
    "GPTNeoXForCausalLM": Checkpoint(
        "gptneox",
        {
            **CLASSIC_KEYS,
            "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
            "rope.dimension_count": n_rotated(0.25, name="rotary_pct"),
            "use_parallel_residual": flag("use_parallel_residual", default=True),
            "hidden_activation": computed("string", _activation),
        },
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.attn_qkv": tensor(
                f"{_LAYER}.attention.query_key_value",
                change=unless_unbiased("attention_bias", default=True, change=in_order),
            ),
            "blk.{i}.attn_output": tensor(
                f"{_LAYER}.attention.dense", change=unless_unbiased("attention_bias", default=True)
            ),
            "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.dense_h_to_4h",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.dense_4h_to_h",
        },
        fixed={"hidden_act": ("gelu", *GELU_TANH), "num_key_value_heads": (None,)},
        rope=_rope,
        unused=("attention_bias",),
        ignored=("*.attention.bias", "*.attention.masked_bias"),  # causal masks, saved by older versions
        base="gpt_neox.",
    )
}
