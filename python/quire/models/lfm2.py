"""LFM2 (Liquid AI 2025): gated short convolutions, and attention in some layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Fields,
    computed,
    f32,
    layers_of_type,
    rope_keys,
    squeezed,
    tensor,
    u32,
)
from ..checkpoints.mapping.rope import Entry
from ..nn import CacheSpec, GatedMLP, Keys, Step, Tensor, Weights, frequency_factors, rope_spec
from .base import MAX_HEADS, Block, Decoder, DenseConfig, Layer, by_layer, head
from .qwen3 import Attention

ARCHES = ("lfm2",)


class ShortConvolution:
    """``out(c * conv(b * x))``, where b, c and x come from one projection."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, kernel: int) -> None:
        self.layer, self.dim = layer, config.dim
        self.b, self.c, self.x = weights.linears("shortconv.in_proj", config.dim, [config.dim] * 3, bias=None)
        self.conv = weights.tensor("shortconv.conv.weight", (config.dim, kernel), vector=True)
        bias = "shortconv.conv.bias"
        self.conv_bias = weights.tensor(bias, (config.dim,), vector=True) if weights.has(bias) else None
        self.out = weights.linear("shortconv.out_proj", config.dim, config.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = graph.conv_state(self.b(x) * self.x(x), self.conv, self.conv_bias, layer=self.layer, state=0)
        return self.out(self.c(x) * y)


class Lfm2(Decoder):
    """Convolution layers have 0 heads of k and v."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.attends, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        self.config = config = DenseConfig.read(keys, n_vocab, n_kv_head=n_kv_head)
        self.kernel = keys.integer("shortconv.l_cache", low=2, high=32)
        self.window = self.window_of(keys)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        mlps = self.mlps(keys, [*weights.blocks(config.n_layer)])
        self.blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation) if attends else ShortConvolution(config, block, i, self.kernel),
                mlp,
            )
            for i, (block, attends, mlp) in enumerate(
                zip(weights.blocks(config.n_layer), self.attends, mlps, strict=True)
            )
        ]
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.norm = weights.norm("token_embd_norm", config.dim, config.eps)  # despite its name, the output norm
        self.head = head(weights, config, self.embedding)

    @staticmethod
    def window_of(keys: Keys) -> int:
        return keys.integer("attention.sliding_window", 0)

    def mlps(self, keys: Keys, blocks: Sequence[Weights]) -> list[Layer]:
        keys.without_effect("leading_dense_block_count", "expert_count", "expert_used_count")
        return [GatedMLP(block, self.config.dim, self.config.ffn_dim) for block in blocks]

    def cache(self) -> list[CacheSpec]:
        attention = self.config.cache([self.window] * self.config.n_layer)
        convolution = CacheSpec(states=[("conv", (self.kernel - 1) * self.config.dim)])
        return [spec if attends else convolution for attends, spec in zip(self.attends, attention, strict=True)]


MODEL = Lfm2

# --- checkpoint ---


def _attends(config: Fields) -> list[bool]:
    n_layer = config.integer("num_hidden_layers")
    if not (convolves := layers_of_type(config, "conv")):
        full = config.items("full_attn_idxs") if config.has("full_attn_idxs") else [*range(n_layer)]
        return [i in full for i in range(n_layer)]
    config.read(("full_attn_idxs",))
    return [not one for one in convolves]


def _kv_heads(config: Fields) -> list[int]:
    n_kv_head = config.integer("num_key_value_heads", 8, low=1)
    return [n_kv_head if attends else 0 for attends in _attends(config)]


def _ffn_dim(config: Fields) -> int:
    """Return the MLP width: two thirds of the configured one, times a factor, rounded up, as in the first Llama."""
    dim = config.integer("block_ff_dim") if config.has("block_ff_dim") else config.integer("intermediate_size", 12288)
    config.read(("intermediate_size",))
    factor, multiple = config.value("block_ffn_dim_multiplier"), config.integer("block_multiple_of", 256, low=1)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return dim
    dim = int(2 * dim / 3)
    if factor is None and config.is_null("block_ffn_dim_multiplier"):
        return dim
    dim = int(config.number("block_ffn_dim_multiplier", 1.0) * dim)
    return (dim + multiple - 1) // multiple * multiple


def rope_of_lfm2(config: Fields) -> Iterator[Entry]:
    return rope_keys(config, 1e6)


_LAYER = "model.layers.{i}"
KEYS = {
    **DECODER_KEYS,
    "attention.head_count_kv": computed("u32[]", _kv_heads),
    "attention.layer_norm_rms_epsilon": f32("norm_eps", default=1e-5),
    "shortconv.l_cache": u32("conv_L_cache", default=3),
    "vocab_size": u32("vocab_size"),
}
TENSORS = {
    **{name: source for name, source in DECODER_TENSORS.items() if name != "output_norm"},
    "token_embd_norm": "model.embedding_norm",
    "blk.{i}.attn_norm": f"{_LAYER}.operator_norm",
    "blk.{i}.ffn_norm": f"{_LAYER}.ffn_norm",
    "blk.{i}.attn_output": f"{_LAYER}.self_attn.out_proj",
    "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_layernorm",
    "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_layernorm",
    "blk.{i}.shortconv.in_proj": f"{_LAYER}.conv.in_proj",
    "blk.{i}.shortconv.conv": tensor(f"{_LAYER}.conv.conv", change=squeezed),
    "blk.{i}.shortconv.out_proj": f"{_LAYER}.conv.out_proj",
    "blk.{i}.ffn_gate": f"{_LAYER}.feed_forward.w1",
    "blk.{i}.ffn_up": f"{_LAYER}.feed_forward.w3",
    "blk.{i}.ffn_down": f"{_LAYER}.feed_forward.w2",
}
_UNUSED = (
    "conv_bias",
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "use_pos_enc",
    "theta",
)
HF = {
    "Lfm2ForCausalLM": Checkpoint(
        "lfm2",
        {**KEYS, "feed_forward_length": computed("u32", _ffn_dim)},
        TENSORS,
        fixed={"tie_embedding": (True, None)},
        rope=rope_of_lfm2,
        tied=True,
        unused=_UNUSED,
    )
}
