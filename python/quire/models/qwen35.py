"""Qwen3.5 (Qwen team 2026): gated delta rule (Yang et al. 2024), gated attention in every fourth layer.

The rows of images have positions in time, height and width; those of a text token are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    PredictingLayers,
    Source,
    adding,
    computed,
    layers_of_type,
    rope_keys,
    tensor,
    u32,
    with_pictures,
)
from ..checkpoints.mapping.rope import Entry, rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from .base import MAX_DIM, MAX_HEADS, Decoder, DenseConfig, Layer, Mixer, layers_left_out

if TYPE_CHECKING:
    from ..checkpoints.mapping import Array

ARCHES = ("qwen35",)


@dataclass(frozen=True)
class DeltaConfig:
    """Sizes of the gated delta-rule layers."""

    kernel: int
    n_key_head: int
    n_key: int  # the size of a head of q and k
    n_head: int
    n_value: int

    @classmethod
    def read(cls, keys: Keys) -> DeltaConfig:
        n_head = keys.integer("ssm.time_step_rank", low=1, high=MAX_HEADS)
        inner = keys.integer("ssm.inner_size", low=1, high=MAX_DIM)
        n_key_head = keys.integer("ssm.group_count", low=1, high=MAX_HEADS)
        if inner % n_head or n_head % n_key_head:
            raise LoadError(
                f"[{keys.arch}] ssm.inner_size {inner}, ssm.time_step_rank {n_head} and ssm.group_count {n_key_head} "
                f"do not divide each other"
            )
        return cls(
            kernel=keys.integer("ssm.conv_kernel", low=2, high=32),
            n_key_head=n_key_head,
            n_key=keys.integer("ssm.state_size", low=1, high=256),
            n_head=n_head,
            n_value=inner // n_head,
        )

    @property
    def n_keys(self) -> int:
        return self.n_key_head * self.n_key

    @property
    def n_values(self) -> int:
        return self.n_head * self.n_value

    @property
    def n_channels(self) -> int:
        return 2 * self.n_keys + self.n_values

    def cache(self) -> CacheSpec:
        state = self.n_head * self.n_key * self.n_value
        return CacheSpec(states=[("conv", (self.kernel - 1) * self.n_channels), ("delta", state)])

    def caches(self, is_recurrent: Sequence[bool], attention: Sequence[CacheSpec]) -> list[CacheSpec]:
        """Return each layer's cache: its state if it is recurrent, else that of ``attention``."""
        return [self.cache() if recurrent else spec for recurrent, spec in zip(is_recurrent, attention, strict=True)]


def unit(x: Tensor, n: int) -> Tensor:
    """Return ``x / sqrt(|x|² + 1e-6)`` of heads of ``n``."""
    scale: float = n**-0.5
    return graph.rms_norm(x, None, 1e-6 / n) * scale


class GatedDelta:
    """The gated delta rule on convolved q, k and v; the output is normalized by head, then gated.

    Files order heads differently from checkpoints: head h reads key ``h % n_key_head``.
    """

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, delta: DeltaConfig) -> None:
        self.layer, self.delta = layer, delta
        self.qkv = weights.linear("attn_qkv", config.dim, delta.n_channels)
        self.z = weights.linear("attn_gate", config.dim, delta.n_values)
        self.conv = weights.tensor("ssm_conv1d.weight", (delta.n_channels, delta.kernel), vector=True)
        self.dt_bias = weights.tensor("ssm_dt.bias", (delta.n_head,), vector=True)
        self.a = weights.tensor("ssm_a", (delta.n_head,), vector=True)
        self.norm = weights.norm("ssm_norm", delta.n_value, config.eps)
        self.out = weights.linear("ssm_out", delta.n_values, config.dim)
        self.gates(config, weights)

    def gates(self, config: DenseConfig, weights: Weights) -> None:
        self.beta = weights.linear("ssm_beta", config.dim, self.delta.n_head)
        self.alpha = weights.linear("ssm_alpha", config.dim, self.delta.n_head)

    def beta_alpha(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the write strength and the decay, before their activations."""
        return self.beta(x), self.alpha(x)

    tiled = True

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        delta = self.delta
        qkv = graph.conv_state(self.qkv(x), self.conv, None, layer=self.layer, state=0, silu=True)
        q = unit(graph.slice(qkv, 0, 0, delta.n_keys).heads(delta.n_key_head), delta.n_key) * delta.n_key**-0.5
        k = unit(graph.slice(qkv, 0, delta.n_keys, 2 * delta.n_keys).heads(delta.n_key_head), delta.n_key)
        v = graph.slice(qkv, 0, 2 * delta.n_keys, delta.n_channels).heads(delta.n_head)
        beta, alpha = self.beta_alpha(x)
        g = graph.multiply_weight(graph.softplus(graph.add_weight(alpha, self.dt_bias)), self.a)
        y = graph.gated_delta(q, k, v, g, graph.sigmoid(beta), layer=self.layer, state=1, tiled=self.tiled)
        return self.out(graph.glu(self.z(x), self.norm(y).merge_heads(), "silu"))


class GatedAttention:
    """Attention whose outputs are multiplied by the sigmoid of a gate; q's projection holds a gate for each head."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head, self.head_dim = layer, config.n_head, config.n_kv_head, config.head_dim
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim * 2, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.head_dim, config.dim, bias=None)
        self.q_norm = weights.norm("attn_q_norm", config.head_dim, config.eps)
        self.k_norm = weights.norm("attn_k_norm", config.head_dim, config.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q_and_gate, head_dim = self.q(x).heads(self.n_head), self.head_dim
        q = rope(self.q_norm(graph.slice(q_and_gate, 0, 0, head_dim)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        y = step.attend(self.layer, q, k, v, scale=self.scale)
        return self.o(y * graph.sigmoid(graph.slice(q_and_gate, 0, head_dim, 2 * head_dim).merge_heads()))


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, mixer: Mixer, mlp: Layer) -> None:
        self.attn_norm, self.mixer = weights.norm("attn_norm", config.dim, config.eps), mixer
        self.ffn_norm, self.mlp = weights.norm("post_attention_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.mixer(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class Qwen35(Decoder):
    """Files store norm weights with the 1 added that checkpoints omit.  The predictor's layer has attention."""

    delta_rule: type[GatedDelta] = GatedDelta

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        n_more = layers_left_out(keys, weights, config.n_layer, n_used=1)
        if config.v_head_dim != config.head_dim:
            raise UnsupportedError(
                f"[{keys.arch}] attention.value_length {config.v_head_dim} differs from attention.key_length "
                f"{config.head_dim}"
            )
        self.is_recurrent = self.recurrent(keys, config.n_layer)[: config.n_layer - n_more]
        config = replace(config, n_layer=config.n_layer - n_more)
        self.delta = DeltaConfig.read(keys)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot),
            sections=self.sections(keys, config.n_rot // 2),
        )  # fmt: skip
        mlp = self.mlp(keys, config)
        blocks = []
        for i, block in enumerate(weights.blocks(config.n_layer)):
            recurrent = self.is_recurrent[i]
            mixer = (
                self.delta_rule(config, block, i, self.delta)
                if recurrent
                else GatedAttention(config, block, i, rotation)
            )
            blocks.append(Block(config, block, mixer, mlp(block)))
        super().__init__(config, weights, blocks)
        self.add_predictor(
            weights,
            lambda block: Block(config, block, GatedAttention(config, block, 0, rotation), mlp(block)),
            config.cache()[0],
        )

    @staticmethod
    def recurrent(keys: Keys, n_layer: int) -> list[bool]:
        """Return the delta-rule layers: those of an array, or all but every n-th."""
        interval = keys.integer("full_attention_interval", 4, low=1)
        if keys.is_array("attention.recurrent_layers"):
            return [bool(one) for one in keys.integers("attention.recurrent_layers", n_layer, high=1)]
        return [(i + 1) % interval != 0 for i in range(n_layer)]

    @staticmethod
    def sections(keys: Keys, n_pairs: int) -> list[int]:
        """Return how many pairs of a head rotate by time, height and width.

        Pair 3 i + 1 rotates by height and 3 i + 2 by width for i below the file's numbers, which may exceed the pairs.
        """
        if not keys.has("rope.dimension_sections"):
            return []
        _, height, width = keys.integers("rope.dimension_sections", 3)
        height, width = min(height, (n_pairs + 1) // 3), min(width, n_pairs // 3)
        return [n_pairs - height - width, height, width]

    def mlp(self, keys: Keys, config: DenseConfig) -> Callable[[Weights], Layer]:
        return lambda block: GatedMLP(block, config.dim, config.ffn_dim)

    def cache(self) -> list[CacheSpec]:
        return self.delta.caches(self.is_recurrent, self.config.cache())


MODEL = Qwen35

# --- checkpoint ---


def recurrent_layers(config: Fields) -> list[bool]:
    n_layer, interval = config.integer("num_hidden_layers"), config.integer("full_attention_interval", 4, low=1)
    return layers_of_type(config, "linear_attention") or [(i + 1) % interval != 0 for i in range(n_layer)]


def _n_rot(config: Fields) -> int:
    everywhere = config.number("partial_rotary_factor", 0.25)
    return int(config.integer("head_dim", 256) * rope_of(config).number("partial_rotary_factor", everywhere))


def _n_values(config: Fields) -> int:
    return config.integer("linear_num_value_heads", 32) * config.integer("linear_value_head_dim", 128)


def rope_of_qwen35(config: Fields) -> Iterator[Entry]:
    rope_of(config).read(("mrope_section", "mrope_interleaved"))  # transformers interleaves the sections regardless
    return rope_keys(config)


def _sections(config: Fields) -> list[int]:
    return [*(int(str(n)) for n in rope_of(config).items("mrope_section") or (11, 11, 10)), 0]


def tiled_heads(x: Array, config: Fields) -> Array:
    """Reorder the value heads: checkpoints group them by key, in files consecutive heads read different keys."""
    import numpy as np

    n_key_head, n_head = config.integer("linear_num_key_heads", 16), config.integer("linear_num_value_heads", 32)
    split = x.reshape(n_key_head, n_head // n_key_head, -1, *x.shape[1:])
    return np.ascontiguousarray(split.swapaxes(0, 1)).reshape(x.shape)


def _after_keys(x: Array, config: Fields) -> Array:
    """Reorder the value heads after q and k, in the fused projection or its convolution."""
    import numpy as np

    x = x.reshape(len(x), -1)
    n_keys = 2 * config.integer("linear_num_key_heads", 16) * config.integer("linear_key_head_dim", 128)
    return np.concatenate([x[:n_keys], tiled_heads(x[n_keys:], config)])


def _columns(x: Array, config: Fields) -> Array:
    columns: Array = tiled_heads(x.T, config).T.copy()
    return columns


def decay(x: Array, config: Fields) -> Array:
    import numpy as np

    decays: Array = np.negative(np.exp(x))
    return decays


def _tiled_decay(x: Array, config: Fields) -> Array:
    return tiled_heads(decay(x, config), config)


_LAYER = "model.layers.{i}"
KEYS = {
    **DECODER_KEYS,
    "attention.key_length": u32("head_dim", default=256),
    "attention.value_length": u32("head_dim", default=256),
    "rope.dimension_count": computed("u32", _n_rot),
    "attention.recurrent_layers": computed("bool[]", recurrent_layers),
    "full_attention_interval": u32("full_attention_interval", default=4),
    "ssm.conv_kernel": u32("linear_conv_kernel_dim", default=4),
    "ssm.state_size": u32("linear_key_head_dim", default=128),
    "ssm.group_count": u32("linear_num_key_heads", default=16),
    "ssm.time_step_rank": u32("linear_num_value_heads", default=32),
    "ssm.inner_size": computed("u32", _n_values),
}
SECTIONS = {"rope.dimension_sections": computed("u32[]", _sections)}
ATTENTION_TENSORS: dict[str, str | Source] = {
    **{name: source for name, source in DECODER_TENSORS.items() if "norm" not in name},
    "output_norm": tensor("model.norm", change=adding(1.0)),
    "blk.{i}.attn_norm": tensor(f"{_LAYER}.input_layernorm", change=adding(1.0)),
    "blk.{i}.post_attention_norm": tensor(f"{_LAYER}.post_attention_layernorm", change=adding(1.0)),
    "blk.{i}.attn_q_norm": tensor(f"{_LAYER}.self_attn.q_norm", change=adding(1.0)),
    "blk.{i}.attn_k_norm": tensor(f"{_LAYER}.self_attn.k_norm", change=adding(1.0)),
    "blk.{i}.ssm_norm": f"{_LAYER}.linear_attn.norm",
}
TENSORS: dict[str, str | Source] = {
    **ATTENTION_TENSORS,
    "blk.{i}.attn_qkv": tensor(f"{_LAYER}.linear_attn.in_proj_qkv", change=_after_keys),
    "blk.{i}.attn_gate": tensor(f"{_LAYER}.linear_attn.in_proj_z", change=tiled_heads),
    "blk.{i}.ssm_beta": tensor(f"{_LAYER}.linear_attn.in_proj_b", change=tiled_heads),
    "blk.{i}.ssm_alpha": tensor(f"{_LAYER}.linear_attn.in_proj_a", change=tiled_heads),
    "blk.{i}.ssm_conv1d": tensor(f"{_LAYER}.linear_attn.conv1d", change=_after_keys),
    "blk.{i}.ssm_dt.bias": tensor(f"{_LAYER}.linear_attn.dt_bias", change=tiled_heads),
    "blk.{i}.ssm_a": tensor(f"{_LAYER}.linear_attn.A_log", change=_tiled_decay),
    "blk.{i}.ssm_out": tensor(f"{_LAYER}.linear_attn.out_proj", change=_columns),
}
# The layer that predicts later tokens.
PREDICTING = PredictingLayers(
    {
        "nextn.eh_proj": "mtp.fc",
        "nextn.enorm": tensor("mtp.pre_fc_norm_embedding", change=adding(1.0)),
        "nextn.hnorm": tensor("mtp.pre_fc_norm_hidden", change=adding(1.0)),
        "nextn.shared_head_norm": tensor("mtp.norm", change=adding(1.0)),
    },
    prefix="mtp.layers.{p}.",
    by_layer={"attention.recurrent_layers": False},
)
_TEXT = Checkpoint(
    "qwen35",
    {**KEYS, **SECTIONS},
    TENSORS,
    fixed={"hidden_act": SILU},
    rope=rope_of_qwen35,
    unused=("attention_bias", "mtp_*", "mlp_only_layers", "mamba_ssm_dtype", "attn_output_gate"),
    ignored=("model.visual.*",),
    predicting=PREDICTING,
)
HF = {"Qwen3_5ForCausalLM": _TEXT, "Qwen3_5ForConditionalGeneration": with_pictures(_TEXT)}
