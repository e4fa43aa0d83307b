"""OpenELM (Mehta et al. 2024): layers of different widths, query and key norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..checkpoints.mapping import SILU, Array, Change, Checkpoint, Fields, Key, computed, f32, tensor, u32
from ..errors import LoadError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from . import classic
from .base import MAX_DIM, MAX_HEAD_DIM, MAX_HEADS, Block, Config, Decoder, DenseConfig

ARCHES = ("openelm",)


class Attention(classic.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.q_norm, self.k_norm = (weights.norm(f"attn_{one}_norm", config.head_dim, config.eps) for one in "qk")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = self.placed(self.q_norm(self.q(x).heads(self.n_head)), step)
        k = self.placed(self.k_norm(self.k(x).heads(self.n_kv_head)), step)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


def sizes(keys: Keys, base: Config) -> list[DenseConfig]:
    """Read each layer's sizes."""
    n, head_dim = base.n_layer, keys.integer("attention.key_length", low=1, high=MAX_HEAD_DIM)
    v_head_dim = keys.integer("attention.value_length", head_dim, low=1, high=MAX_HEAD_DIM)
    n_rot = keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    eps = keys.number("attention.layer_norm_rms_epsilon")
    by_layer = zip(
        keys.integers("attention.head_count", n, low=1, high=MAX_HEADS),
        keys.integers("attention.head_count_kv", n, low=1, high=MAX_HEADS),
        keys.integers("feed_forward_length", n, low=1, high=MAX_DIM),
        strict=True,
    )
    layers = [
        DenseConfig(
            **vars(base), n_head=n_head, n_kv_head=n_kv_head, head_dim=head_dim, v_head_dim=v_head_dim, n_rot=n_rot,
            ffn_dim=ffn_dim, eps=eps,
        )
        for n_head, n_kv_head, ffn_dim in by_layer
    ]  # fmt: skip
    for layer in layers:
        layer.check()
    return layers


class OpenELM(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        base = Config.read(keys, n_vocab)
        keys.only("attention.causal", True)
        self.layers = layers = sizes(keys, base)
        rotation = rope_spec(
            keys, n_dims=layers[0].n_rot, layout="half", factors=frequency_factors(weights, layers[0].n_rot)
        )
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, (config, block) in enumerate(zip(layers, weights.blocks(base.n_layer), strict=True))
        ]
        widest = replace(
            layers[0], n_head=max(config.n_head for config in layers), ffn_dim=max(config.ffn_dim for config in layers)
        )
        super().__init__(widest, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return [spec for config in self.layers for spec in replace(config, n_layer=1).cache()]


MODEL = OpenELM

# --- checkpoint ---


def _numbers(config: Fields, name: str) -> list[float]:
    values, n = config.items(name), config.integer("num_transformer_layers", low=1)
    numbers = [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(values) != n or len(numbers) != n or min(numbers) <= 0:
        raise LoadError(f"[convert] invalid '{name}': expected {n} positive numbers")
    return numbers


def _heads(name: str) -> Key:
    def read(config: Fields) -> Sequence[int]:
        return [int(number) for number in _numbers(config, name)]

    return computed("u32[]", read)


def _ffn_dims(config: Fields) -> Sequence[int]:
    """Return the MLP widths: multiples of the width, rounded to the divisor and never more than 10 % down."""
    divisor, width = config.integer("ffn_dim_divisor", 256, low=1), config.integer("model_dim")
    wanted = [factor * width for factor in _numbers(config, "ffn_multipliers")]
    near = [max(divisor, int(n + divisor / 2) // divisor * divisor) for n in wanted]
    return [n + divisor if n < 0.9 * exact else n for n, exact in zip(near, wanted, strict=True)]


def _half(which: int) -> Change:
    def change(x: Array, config: Fields) -> Array:
        n = x.shape[0] // 2
        return x[which * n : (which + 1) * n]

    return change


_LAYER = "transformer.layers.{i}"
HF = {
    "OpenELMForCausalLM": Checkpoint(
        "openelm",
        {
            "context_length": u32("max_context_length", default=2048, low=1),
            "embedding_length": u32("model_dim"),
            "block_count": u32("num_transformer_layers"),
            "feed_forward_length": computed("u32[]", _ffn_dims),
            "attention.head_count": _heads("num_query_heads"),
            "attention.head_count_kv": _heads("num_kv_heads"),
            "attention.key_length": u32("head_dim"),
            "attention.value_length": u32("head_dim"),
            "attention.layer_norm_rms_epsilon": computed("f32", lambda config: 1e-6),
            "rope.dimension_count": u32("head_dim"),
            "rope.freq_base": f32("rope_freq_constant", default=10000.0),
        },
        {
            "token_embd": "transformer.token_embeddings",
            "output_norm": "transformer.norm",
            "blk.{i}.attn_norm": f"{_LAYER}.attn_norm",
            "blk.{i}.attn_qkv": f"{_LAYER}.attn.qkv_proj",
            "blk.{i}.attn_q_norm": f"{_LAYER}.attn.q_norm",
            "blk.{i}.attn_k_norm": f"{_LAYER}.attn.k_norm",
            "blk.{i}.attn_output": f"{_LAYER}.attn.out_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.ffn_norm",
            "blk.{i}.ffn_gate": tensor(f"{_LAYER}.ffn.proj_1", change=_half(0)),
            "blk.{i}.ffn_up": tensor(f"{_LAYER}.ffn.proj_1", change=_half(1)),
            "blk.{i}.ffn_down": f"{_LAYER}.ffn.proj_2",
        },
        fixed={
            "activation_fn_name": SILU,
            "ffn_with_glu": (True,),
            "normalization_layer_name": ("rms_norm",),
            "normalize_qk_projections": (True,),
            "share_input_output_layers": (True,),
        },
        rope=None,
        tied=True,
        unused=("num_gqa_groups", "qk_multipliers", "rope_max_length"),
        base="transformer.",
    )
}
