"""Apertus (Swiss AI 2025): an ungated MLP with xIELU (Huang and Schlag 2025), query and key norms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .._native.graph import add_weight, concat, slice, xielu
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
    with_pictures,
)
from ..checkpoints.mapping.rope import rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import MLP, Keys, Linear, Tensor, Weight, Weights, frequency_factors, rope_spec
from . import qwen3
from .base import Block, Decoder, DenseConfig
from .llama import head_dim_of

ARCHES = ("apertus",)
NEVER = -1e30  # the logit of tokens without a row in the output matrix


class Xielu:
    """The xIELU activation.  Files store the alphas before their softplus."""

    def __init__(self, alpha_p: float, alpha_n: float, beta: float, eps: float) -> None:
        self.alpha_p, self.alpha_n, self.beta, self.eps = softplus(alpha_p), beta + softplus(alpha_n), beta, eps

    def __call__(self, x: Tensor) -> Tensor:
        return xielu(x, alpha_p=self.alpha_p, alpha_n=self.alpha_n, beta=self.beta, eps=self.eps)


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@dataclass(frozen=True)
class ShortHead(Linear):
    """An output matrix of the first tokens only; ``rest`` are the logits of the others, which are never generated."""

    rest: tuple[Weight, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        logits = y = super().__call__(x)
        for never in self.rest:
            logits = concat(logits, add_weight(slice(y, 0, 0, never.shape[0]) * 0.0, never), 0)
        return logits


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

    def output(self, weights: Weights) -> Linear:
        import numpy as np

        n_vocab = self.config.n_vocab
        n = weights.n_rows("output.weight") if weights.has("output.weight") else n_vocab
        if not 0 < n < n_vocab:
            return super().output(weights)
        first = weights.linear("output", self.config.dim, n)
        parts = (np.full(min(n, n_vocab - i), NEVER, np.float32) for i in range(n, n_vocab, n))
        return ShortHead(
            first.weight, None, first.scale, first.added, rest=tuple(weights.computed("output.rest", x) for x in parts)
        )


MODEL = Apertus

# --- checkpoint ---


def _rope(config: Fields) -> Iterator[Entry]:
    if not rope_of(config).names():
        raise UnsupportedError("[convert] 'rope_parameters' is missing from config.json")
    return rope_keys(config, 12e6)


_LAYER = "model.layers.{i}"
_BIASES = only_with("attention_bias", default=False, biases=True)
_TEXT = Checkpoint(
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
_1P5 = replace(_TEXT, unused=(*_TEXT.unused, "output_vocab_size"))
HF = {
    "ApertusForCausalLM": _TEXT,
    "Apertus1p5TextForCausalLM": _1P5,
    "Apertus1p5ForConditionalGeneration": replace(
        with_pictures(_1P5),
        numbers={key: name.replace("model.", "model.language_model.") for key, name in _1P5.numbers.items()},
        unused=(*with_pictures(_1P5).unused, "image_token_offset", "audio_token_offset"),
    ),
}
