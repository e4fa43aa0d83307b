"""LFM3 (Liquid AI 2026): LFM2 with norms on both sides, windows in some layers, attention gated by head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._native.graph import multiply_broadcast, sigmoid
from ..checkpoints.mapping import Array, Checkpoint, Entry, Fields, computed, only_with, tensor, u32
from ..checkpoints.mapping.rope import kind_of, rope_of, theta_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from . import lfm2, qwen3
from .base import MAX_HEADS, Block, Decoder, DenseConfig, SandwichBlock, by_layer, head
from .base import local_layers as locals_of

ARCHES = ("lfm3",)
LOCAL_BASE, GLOBAL_BASE, GLOBAL_PART = 1e4, 1e6, 0.5


class Attention(qwen3.Attention):
    """Multiplies each head's output by the sigmoid of a product with the input, if the file has the gates."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        has_gate = weights.has("attn_gate.weight")
        self.gate = weights.linear("attn_gate", config.dim, config.n_head) if has_gate else None

    def attended(self, x: Tensor, step: Step) -> Tensor:
        y = super().attended(x, step)
        if self.gate is None:
            return y
        gate = sigmoid(self.gate(x)).heads(self.n_head)
        return multiply_broadcast(y.heads(self.n_head), gate).merge_heads()


class Lfm3(Decoder):
    """Convolution layers have 0 heads of k and v; windowed layers rotate whole heads with a base of their own."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.attends, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        self.config = config = DenseConfig.read(keys, n_vocab, n_kv_head=n_kv_head)
        self.kernel = keys.integer("shortconv.l_cache", low=2, high=32)
        window = keys.integer("attention.sliding_window", low=1)
        local = locals_of(keys, config.n_layer, 1)
        self.windows = [window if one else 0 for one in local]
        base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        factors = frequency_factors(weights, config.n_rot)
        rotations = [
            rope_spec(keys, n_dims=config.n_rot, layout="half", factors=factors),
            rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=base),
        ]
        self.blocks = []
        for i, block in enumerate(weights.blocks(config.n_layer)):
            mixer = (
                Attention(config, block, i, rotations[local[i]])
                if self.attends[i]
                else lfm2.ShortConvolution(config, block, i, self.kernel)
            )
            kind = SandwichBlock if block.has("post_attention_norm.weight") else Block
            self.blocks.append(kind(config, block, mixer, GatedMLP(block, config.dim, config.ffn_dim)))
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.norm = weights.norm("token_embd_norm", config.dim, config.eps)
        self.head = head(weights, config, self.embedding)

    def cache(self) -> list[CacheSpec]:
        convolution = CacheSpec(states=[("conv", (self.kernel - 1) * self.config.dim)])
        attention = self.config.cache(self.windows)
        return [spec if attends else convolution for attends, spec in zip(self.attends, attention, strict=True)]


MODEL = Lfm3

# --- checkpoint ---


def _kinds(config: Fields) -> list[str]:
    n_layer, kinds = config.integer("num_hidden_layers"), [str(kind) for kind in config.items("layer_types")]
    if kinds and (len(kinds) != n_layer or not set(kinds) <= {"conv", "sliding_attention", "full_attention"}):
        raise UnsupportedError(
            "[convert] invalid 'layer_types': expected conv, sliding_attention or full_attention for each layer"
        )
    periods = ("sliding_attention", "conv", "full_attention", "conv")
    return kinds or [periods[i % 4] if i else "conv" for i in range(n_layer)]


def _kv_heads(config: Fields) -> list[int]:
    n_kv_head = config.integer("num_key_value_heads", 4, low=1)
    return [0 if kind == "conv" else n_kv_head for kind in _kinds(config)]


def _rope(config: Fields) -> Iterator[Entry]:
    local, everywhere = rope_of(config, "sliding_attention"), rope_of(config)
    if kind_of(local) != "default" or kind_of(everywhere) not in ("default", "proportional"):
        raise UnsupportedError(
            f"[convert] unsupported rope scaling: '{kind_of(local)}' for sliding_attention (expected default), "
            f"'{kind_of(everywhere)}' for full_attention (expected default or proportional)"
        )
    if (factor := everywhere.number("factor", 1.0)) != 1.0 and kind_of(everywhere) == "proportional":
        raise UnsupportedError(f"[convert] unsupported 'factor' of proportional rope scaling: {factor} (expected 1)")
    yield "rope.freq_base_swa", "f32", local.number("rope_theta", LOCAL_BASE)
    yield "rope.freq_base", "f32", theta_of(config, GLOBAL_BASE)


class _Checkpoint(Checkpoint):
    def _factors(self, config: Fields, entries: Iterable[Entry]) -> Iterator[tuple[str, Array]]:
        """Yield the frequency factors: huge ones for dimensions that are not rotated."""
        import numpy as np

        everywhere, n = rope_of(config), config.integer("head_dim", 128)
        part = everywhere.number("partial_rotary_factor", 1.0 if config.has("rope_parameters") else GLOBAL_PART)
        if config.has("rope_parameters") and kind_of(everywhere) == "default":
            return
        yield "rope_freqs.weight", np.where(np.arange(n // 2) < int(part * n // 2), 1.0, 1e30).astype(np.float32)


_LAYER = "model.layers.{i}"
_NORMS, _GATES = only_with("use_sandwich_norm", default=True), only_with("use_attention_gate", default=True)
HF = {
    "Lfm3ForCausalLM": _Checkpoint(
        "lfm3",
        {
            **lfm2.KEYS,
            "feed_forward_length": u32("intermediate_size", default=7680),
            "attention.head_count_kv": computed("u32[]", _kv_heads),
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "attention.sliding_window": u32("sliding_window", default=256, low=1),
            "attention.sliding_window_pattern": computed(
                "bool[]", lambda config: [kind == "sliding_attention" for kind in _kinds(config)]
            ),
            "shortconv.l_cache": u32("conv_L_cache", default=7),
        },
        {
            **lfm2.TENSORS,
            **qwen3.QK_NORMS,
            "blk.{i}.attn_output": f"{_LAYER}.self_attn.o_proj",
            "blk.{i}.attn_gate": tensor(f"{_LAYER}.self_attn.gate_proj", change=_GATES),
            "blk.{i}.post_attention_norm": tensor(f"{_LAYER}.post_operator_norm", change=_NORMS),
            "blk.{i}.post_ffw_norm": tensor(f"{_LAYER}.post_ffn_norm", change=_NORMS),
        },
        rope=_rope,
        tied=True,
        unused=("conv_bias", "attention_bias", "use_sandwich_norm", "use_attention_gate"),
    )
}
