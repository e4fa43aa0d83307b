"""Nemotron 4 and Minitron (Parmar et al. 2024): layer norms, partial RoPE, squared ReLU (So et al. 2021)."""

from __future__ import annotations

from .._native.graph import relu_squared
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Fields,
    adding,
    computed,
    f32,
    no_windows,
    tensor,
)
from ..checkpoints.mapping.rope import partial_rotary
from ..nn import MLP, Keys, Step, Tensor, Weights, rope_spec
from .base import Decoder, DenseConfig, Layer, Mixer, head
from .llama import Attention, head_dim_of

ARCHES = ("nemotron",)


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attn_norm, self.attention = weights.layer_norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.layer_norm("ffn_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class Nemotron(Decoder):
    """Files store norm weights with the 1 added that checkpoints omit."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = DenseConfig.read(keys, n_vocab, eps="attention.layer_norm_epsilon")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation),
                MLP(block, config.dim, config.ffn_dim, relu_squared),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        self.norm = weights.layer_norm("output_norm", config.dim, config.eps)
        self.head = head(weights, config, self.embedding)


MODEL = Nemotron

# --- checkpoint ---


def _n_rot(config: Fields) -> int:
    return partial_rotary(config, head_dim_of(config), 0.5)


_NORMS = {
    "output_norm": "model.norm",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
}
HF = {
    "NemotronForCausalLM": Checkpoint(
        "nemotron",
        {
            **{k: v for k, v in DECODER_KEYS.items() if not k.endswith("rms_epsilon")},
            "attention.key_length": computed("u32", head_dim_of),
            "attention.value_length": computed("u32", head_dim_of),
            "attention.layer_norm_epsilon": f32("norm_eps", default=1e-5),
            "rope.dimension_count": computed("u32", _n_rot),
        },
        {
            **{ours: theirs for ours, theirs in DECODER_TENSORS.items() if ours not in _NORMS},
            **{f"{ours}.weight": tensor(f"{theirs}.weight", change=adding(1.0)) for ours, theirs in _NORMS.items()},
            **{f"{ours}.bias": f"{theirs}.bias" for ours, theirs in _NORMS.items()},
        },
        fixed={"hidden_act": ("relu2",)},
        checks=(no_windows,),
        unused=("attention_bias", "mlp_bias", "rms_norm_eps"),
    )
}
