"""Apertus (Swiss AI 2025): an ungated MLP with xIELU (Huang and Schlag 2025), query and key norms."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .._native.graph import xielu
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Entry,
    Fields,
    computed,
    f32,
    no_windows,
    only_with,
    rope_keys,
    tensor,
)
from ..checkpoints.mapping.rope import rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import MLP, Keys, Tensor, Weights, frequency_factors, rope_spec
from . import qwen3
from .base import Block, Decoder, DenseConfig
from .llama import head_dim_of

ARCHES = ("apertus",)


class Xielu:
    """The xIELU activation.  Files store the alphas before their softplus."""

    def __init__(self, alpha_p: float, alpha_n: float, beta: float, eps: float) -> None:
        self.alpha_p, self.alpha_n, self.beta, self.eps = softplus(alpha_p), beta + softplus(alpha_n), beta, eps

    def __call__(self, x: Tensor) -> Tensor:
        return xielu(x, alpha_p=self.alpha_p, alpha_n=self.alpha_n, beta=self.beta, eps=self.eps)


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


class Apertus(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        names = ("alpha_p", "alpha_n", "beta", "eps")
        curves = [
            Xielu(*each)
            for each in zip(*(keys.numbers_of(f"xielu.{name}", config.n_layer) for name in names), strict=True)
        ]
        if not all(math.isfinite(curve.alpha_p + curve.alpha_n) for curve in curves):
            raise LoadError("[apertus] the parameters of xielu overflow f32")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(
                config,
                block,
                qwen3.Attention(config, block, i, rotation),
                MLP(block, config.dim, config.ffn_dim, curves[i]),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Apertus

# --- checkpoint ---


def _rope(config: Fields) -> Iterator[Entry]:
    if not rope_of(config).names():
        raise UnsupportedError("[convert] 'rope_parameters' is missing from config.json")
    return rope_keys(config, 12e6)


_LAYER = "model.layers.{i}"
_BIASES = only_with("attention_bias", default=False, biases=True)
HF = {
    "ApertusForCausalLM": Checkpoint(
        "apertus",
        {
            **DECODER_KEYS,
            "attention.key_length": computed("u32", head_dim_of),
            "attention.value_length": computed("u32", head_dim_of),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        },
        {
            **DECODER_TENSORS,
            **qwen3.QK_NORMS,
            **{f"blk.{{i}}.attn_{one}": tensor(f"{_LAYER}.self_attn.{one}_proj", change=_BIASES) for one in "qkv"},
            "blk.{i}.attn_output": tensor(f"{_LAYER}.self_attn.o_proj", change=_BIASES),
            "blk.{i}.attn_norm": f"{_LAYER}.attention_layernorm",
            "blk.{i}.ffn_norm": f"{_LAYER}.feedforward_layernorm",
        },
        fixed={"hidden_act": ("xielu",), "mlp_bias": (False,), "post_norm": (False,), "qk_norm": (True,)},
        checks=(no_windows,),
        rope=_rope,
        numbers={f"xielu.{name}": f"{_LAYER}.mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
        unused=("attention_bias",),
    )
}
