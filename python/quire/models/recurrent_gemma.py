"""RecurrentGemma (Botev et al. 2024): Griffin's gated linear recurrent units in two of three layers, else windows."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Array,
    Checkpoint,
    Fields,
    Key,
    adding,
    cap,
    computed,
    squeezed,
    tensor,
    u32,
)
from ..checkpoints.mapping.rope import partial_rotary
from ..errors import LoadError
from ..nn import CacheSpec, GatedMLP, Keys, Step, Tensor, Weights, rope_spec, soft_cap
from .base import MAX_DIM, MAX_HEADS, Block, Decoder, DenseConfig, Mixer, by_layer
from .llama import Attention

ARCHES = ("recurrent-gemma",)
LEAST_GATE = -60.0  # below it a recurrent gate keeps the state unchanged in float32


def bfloat16(number: float) -> float:
    """Round to the nearest BF16 number, to an even one from the middle between two."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    bits += 0x7FFF + (bits >> 16 & 1)
    rounded: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
    return rounded


@dataclass(frozen=True)
class Recurrence:
    """Sizes of the recurrent layers."""

    inner: int
    kernel: int
    n_gate: int  # blocks of channels with gates of their own

    @classmethod
    def read(cls, keys: Keys, n_head: int) -> Recurrence:
        sizes = cls(
            keys.integer("ssm.inner_size", low=1, high=MAX_DIM), keys.integer("ssm.conv_kernel", low=2, high=32), n_head
        )
        if sizes.inner % n_head:
            raise LoadError(f"[{keys.arch}] ssm.inner_size {sizes.inner} is not divisible by head_count {n_head}")
        return sizes

    def cache(self) -> CacheSpec:
        return CacheSpec(states=[("conv", (self.kernel - 1) * self.inner), ("ssm", self.inner)])


class Gate:
    """A matrix for each block of channels, and biases."""

    def __init__(self, weights: Weights, name: str, sizes: Recurrence) -> None:
        self.n, size = sizes.n_gate, sizes.inner // sizes.n_gate
        self.weight = weights.tensor(f"{name}.weight", (self.n, size, size))
        self.bias = weights.tensor(f"{name}.bias", (self.n, size), vector=True)

    def __call__(self, x: Tensor) -> Tensor:
        return graph.add_weight(graph.head_linear(x.heads(self.n), self.weight), self.bias).merge_heads()


class RecurrentMixer:
    """``h = a h + sqrt(1 - a^2) i x``, where ``a = exp(c r)``, and i and r are sigmoids of gates; a first h is ``i x``.

    The scan computes ``h = exp(c r) h + r y``, so y is the input divided by r.
    """

    def __init__(self, weights: Weights, dim: int, layer: int, sizes: Recurrence) -> None:
        self.layer, self.inner = layer, sizes.inner
        self.y = weights.linear("ssm_gate", dim, sizes.inner, bias=True)
        self.x = weights.linear("ssm_in", dim, sizes.inner, bias=True)
        self.conv = weights.tensor("ssm_conv1d.weight", (sizes.inner, sizes.kernel), vector=True)
        self.conv_bias = weights.tensor("ssm_conv1d.bias", (sizes.inner,), vector=True)
        self.input, self.keep = (Gate(weights, f"ssm_{name}_gate", sizes) for name in ("input", "keep"))
        self.a = weights.tensor("ssm_a", (sizes.inner, 1), vector=True)
        self.out = weights.linear("ssm_out", sizes.inner, dim, bias=True)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.y(x)
        x = graph.conv_state(self.x(x), self.conv, self.conv_bias, layer=self.layer, state=0)
        kept = graph.clamp(self.keep(x), LEAST_GATE, -LEAST_GATE)
        one = graph.exp(x * 0.0)
        r = graph.sigmoid(kept)
        decay = graph.multiply_weight(r.heads(self.inner), self.a).merge_heads()
        root = graph.sqrt(one + graph.negate(graph.exp(decay * 2.0)))
        is_later = graph.clamp(graph.scale_by_position(one, step.positions, beta=2.0, n_ctx=1), 1.0, 2.0) + one * -1.0
        factor = one + is_later * (root + one * -1.0)
        inverse = one + graph.exp(graph.negate(kept))
        x = x * graph.sigmoid(self.input(x)) * factor * inverse
        unit = graph.slice(one, 0, 0, 1)
        h = graph.selective_scan(x, r, unit, unit, self.a, None, layer=self.layer, state=1)
        return self.out(graph.glu(y, h, "gelu_tanh"))


class RecurrentGemma(Decoder):
    """Recurrent layers have 0 heads of k and v.  Files store norm weights with the 1 that checkpoints omit."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.attends, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        config = DenseConfig.read(keys, n_vocab, n_kv_head=n_kv_head)
        self.sizes = Recurrence.read(keys, config.n_head)
        self.window = keys.integer("attention.sliding_window", low=1)
        self.cap = keys.number("final_logit_softcapping")
        if self.cap <= 0:
            raise LoadError(f"[{keys.arch}] final_logit_softcapping {self.cap} is out of range: expected more than 0")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")

        def mixer(i: int, block: Weights) -> Mixer:
            if self.attends[i]:
                return Attention(config, block, i, rotation)
            return RecurrentMixer(block, config.dim, i, self.sizes)

        blocks = [
            Block(config, block, mixer(i, block), GatedMLP(block, config.dim, config.ffn_dim, "gelu_tanh"))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        attention = self.config.cache([self.window] * self.config.n_layer)
        return [attention[i] if attends else self.sizes.cache() for i, attends in enumerate(self.attends)]

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens) * bfloat16(self.config.dim**0.5)
        return soft_cap(self.logits(x, step), self.cap)


MODEL = RecurrentGemma

# --- checkpoint ---


def _kinds(config: Fields) -> list[bool]:
    """Return the layers with attention."""
    kinds = config.items("block_types") or ["recurrent", "recurrent", "attention"]
    return [kinds[i % len(kinds)] == "attention" for i in range(config.integer("num_hidden_layers"))]


def _n_kv_heads(config: Fields) -> list[int]:
    n = config.integer("num_key_value_heads", config.integer("num_attention_heads", 10), low=1)
    return [n if attends else 0 for attends in _kinds(config)]


def _head_dim(config: Fields) -> int:
    return config.integer("hidden_size") // config.integer("num_attention_heads", low=1)


def _decays(x: Array, config: Fields) -> Array:
    import numpy as np

    decays: Array = -8 * np.log1p(np.exp(x)).astype(np.float32)[:, None]
    return decays


def _transposed(x: Array, config: Fields) -> Array:
    turned: Array = x.swapaxes(-1, -2).copy() if x.ndim == 3 else x
    return turned


_LAYER = "model.layers.{i}"
_MIXER = f"{_LAYER}.temporal_block"
_UNIT = f"{_MIXER}.rg_lru"
_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "context_length": computed("u32", lambda config: config.integer("max_position_embeddings", 8192)),
    "feed_forward_length": computed("u32", lambda config: config.integer("intermediate_size") // 2),
    "attention.head_count_kv": computed("u32[]", _n_kv_heads),
    "attention.key_length": computed("u32", _head_dim),
    "attention.value_length": computed("u32", _head_dim),
    "attention.sliding_window": u32("attention_window_size", default=2048, low=1),
    "rope.dimension_count": computed("u32", lambda config: partial_rotary(config, _head_dim(config), 0.5)),
    "ssm.inner_size": u32("lru_width", "hidden_size", low=1),
    "ssm.conv_kernel": u32("conv1d_width", default=4),
    "final_logit_softcapping": cap("logits_soft_cap", 30.0),
}
HF = {
    "RecurrentGemmaForCausalLM": Checkpoint(
        "recurrent-gemma",
        _KEYS,
        {
            **{name: source for name, source in DECODER_TENSORS.items() if "attn_" not in name and "ffn_" not in name},
            "output_norm": tensor("model.final_norm", change=adding(1.0)),
            "blk.{i}.attn_norm": tensor(f"{_LAYER}.temporal_pre_norm", change=adding(1.0)),
            "blk.{i}.ffn_norm": tensor(f"{_LAYER}.channel_pre_norm", change=adding(1.0)),
            **{f"blk.{{i}}.attn_{name}": f"{_MIXER}.{name}_proj" for name in "qkv"},
            "blk.{i}.attn_output": f"{_MIXER}.o_proj",
            "blk.{i}.ssm_gate": f"{_MIXER}.linear_y",
            "blk.{i}.ssm_in": f"{_MIXER}.linear_x",
            "blk.{i}.ssm_out": f"{_MIXER}.linear_out",
            "blk.{i}.ssm_conv1d": tensor(f"{_MIXER}.conv_1d", change=squeezed),
            "blk.{i}.ssm_a": tensor(f"{_UNIT}.recurrent_param", change=_decays),
            **{
                f"blk.{{i}}.ssm_{ours}_gate.{part}": tensor(f"{_UNIT}.{theirs}_gate_{part}", change=_transposed)
                for ours, theirs in (("input", "input"), ("keep", "recurrent"))
                for part in ("weight", "bias")
            },
            **{f"blk.{{i}}.ffn_{one}": f"{_LAYER}.mlp_block.{one}_proj" for one in ("gate", "up", "down")},
        },
        fixed={"hidden_activation": ("gelu_pytorch_tanh",)},
        tied=True,
        unused=("attention_bias", "*w_init_variance_scale", "layer_types", "layers_block_type", "head_dim"),
    )
}
