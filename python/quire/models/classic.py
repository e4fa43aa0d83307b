"""Shared parts of decoders with layer norms: GPT-2 and its descendants."""

from __future__ import annotations

from collections.abc import Sequence

from .._native.graph import layer_norm, multiply_weight
from ..checkpoints.mapping import DECODER_KEYS, Array, Change, Fields, Key, computed
from ..checkpoints.mapping.rope import rope_of
from ..errors import CapacityError, UnsupportedError
from ..nn import CacheSpec, Linear, RopeSpec, Step, Tensor, Weight, Weights, rope, select_rows
from .base import DenseConfig, Layer, Mixer

EPS = "attention.layer_norm_epsilon"  # the key of layer norms' epsilon


def projections(config: DenseConfig, weights: Weights) -> list[Linear]:
    """Take the projections of q, k and v, from one tensor or three, with biases if the file has them."""
    sizes = [config.n_head * config.head_dim, config.n_kv_head * config.head_dim, config.n_kv_head * config.v_head_dim]
    if weights.has("attn_qkv.weight"):
        return weights.linears("attn_qkv", config.dim, sizes, bias=None)
    return [weights.linear(f"attn_{one}", config.dim, n, bias=None) for one, n in zip("qkv", sizes, strict=True)]


class Attention:
    """Grouped-query attention.  ``rotation`` None: without RoPE, for models with position embeddings."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec | None = None) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q, self.k, self.v = projections(config, weights)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    def placed(self, x: Tensor, step: Step) -> Tensor:
        """Apply RoPE to heads."""
        return x if self.rotation is None else rope(x, step.positions, self.rotation)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = self.placed(self.q(x).heads(self.n_head), step)
        k = self.placed(self.k(x).heads(self.n_kv_head), step)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class LinearBiases:
    """ALiBi (Press, Smith and Lewis 2021): scores fall linearly with the distance, with a slope for each head."""

    def __init__(self, weights: Weights, n_head: int, max_bias: float = 8.0) -> None:
        self.weights, self.slopes = weights, alibi_slopes(n_head, max_bias)
        self.made: dict[int, Weight] = {}  # by n_ctx

    def of(self, step: Step) -> Weight:
        """Return the table that ``attend`` adds to scores by distance."""
        import numpy as np

        if step.n_ctx not in self.made:
            distances = np.arange(step.n_ctx - 1, -1, -1, dtype=np.float32)
            table = -np.array(self.slopes, np.float32)[:, None] * distances
            self.made[step.n_ctx] = self.weights.computed("alibi", table)
        return self.made[step.n_ctx]


def alibi_slopes(n_head: int, max_bias: float) -> list[float]:
    """Return each head's slope, ``2 ** (-max_bias * i / n_head)`` for head i from 1 on.

    If ``n_head`` is not a power of 2, use the next lower one's slopes, then every other one of twice as many heads.
    """
    n: int = 1 << (n_head.bit_length() - 1)
    first = [2.0 ** (-max_bias * (i + 1) / n) for i in range(n)]
    return first + [2.0 ** (-max_bias * (2 * i + 1) / (2 * n)) for i in range(n_head - n)]


class AlibiAttention(Attention):
    """Attention with ALiBi instead of RoPE."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, biases: LinearBiases | None) -> None:
        super().__init__(config, weights, layer)
        self.biases = biases

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values."""
        return (
            self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head), self.v(x).heads(self.n_kv_head),
        )  # fmt: skip

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.heads(x)
        bias = self.biases.of(step) if self.biases else None
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale, bias=bias))


class HeadNorms(Attention):
    """Attention with a norm for each head of q and k, if the file has them."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec | None = None) -> None:
        super().__init__(config, weights, layer, rotation)
        self.eps = config.eps
        shapes = {
            "attn_q_norm.weight": (config.n_head, config.head_dim),
            "attn_k_norm.weight": (config.n_kv_head, config.head_dim),
        }
        self.q_norm, self.k_norm = (
            weights.tensor(name, shape, vector=True) if weights.has(name) else None for name, shape in shapes.items()
        )

    def normed(self, x: Tensor, weight: Weight | None) -> Tensor:
        return x if weight is None else multiply_weight(layer_norm(x, None, None, self.eps), weight)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = self.placed(self.normed(self.q(x).heads(self.n_head), self.q_norm), step)
        k = self.placed(self.normed(self.k(x).heads(self.n_kv_head), self.k_norm), step)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Block:
    """Attention, then an MLP, each with a layer norm before it and a residual connection."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attn_norm, self.attention = weights.layer_norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.layer_norm("ffn_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class ParallelBlock:
    """Attention and MLP in parallel, with the same input (Wang and Komatsuzaki 2021).

    ``mlp_norm``: the name of the MLP's own norm; if the file has none, both use ``attn_norm``.
    """

    def __init__(
        self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer, *, mlp_norm: str = "ffn_norm"
    ) -> None:
        self.attn_norm, self.attention = weights.layer_norm("attn_norm", config.dim, config.eps), attention
        has_own = weights.has(f"{mlp_norm}.weight")
        self.ffn_norm, self.mlp = weights.layer_norm(mlp_norm, config.dim, config.eps) if has_own else None, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        normed = self.attn_norm(x)
        return x + self.attention(normed, step) + self.mlp(self.ffn_norm(x) if self.ffn_norm else normed)


class PositionTable:
    """A learned vector for each position (Radford et al. 2018)."""

    def __init__(self, config: DenseConfig, weights: Weights) -> None:
        self.arch, self.n = config.arch, config.n_ctx_train
        self.vectors = weights.embedding("position_embd", config.n_ctx_train, config.dim)

    def __call__(self, step: Step) -> Tensor:
        if step.n_ctx > self.n:
            raise CapacityError(
                f"[{self.arch}] n_ctx {step.n_ctx} is too large: the model has {self.n} positions (n_ctx={self.n})"
            )
        return self.vectors(step.positions)


class LayerNormDecoder:
    """Embedding, blocks, a layer norm, an output matrix, full attention in every layer."""

    def __init__(self, config: DenseConfig, weights: Weights, blocks: Sequence[Mixer]) -> None:
        self.config = config
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = blocks
        self.norm = weights.layer_norm("output_norm", config.dim, config.eps)
        has_own = weights.has("output.weight")
        self.head = (
            weights.linear("output", config.dim, config.n_vocab, bias=None) if has_own else self.embedding.as_head()
        )

    def cache(self) -> list[CacheSpec]:
        return self.config.cache()

    def logits(self, x: Tensor, step: Step) -> Tensor:
        """Return the logits of embedded tokens."""
        x = step.run_layers(self.blocks, x)
        return self.head(self.norm(select_rows(x, step.logit_rows)))

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens), step)


# --- checkpoint ---


def in_order(x: Array, config: Fields) -> Array:
    """Reorder fused rows, which checkpoints store head by head, to all of q, then k, then v."""
    n_head = config.integer("n_head" if config.has("n_head") else "num_attention_heads", low=1)
    split = x.reshape(n_head, 3, x.shape[0] // n_head // 3, *x.shape[1:])
    ordered: Array = split.swapaxes(0, 1).reshape(x.shape)
    return ordered


def unless_unbiased(name: str, *, default: bool, change: Change | None = None) -> Change:
    """Reject a bias in the checkpoint if the configuration denies it (``name`` false)."""

    def checked(x: Array, config: Fields) -> Array:
        if x.ndim == 1 and not config.flag(name, default):
            raise UnsupportedError(f"[convert] '{name}' is false, but the checkpoint has biases")
        return change(x, config) if change else x

    return checked


def n_rotated(factor: float, *, name: str = "partial_rotary_factor") -> Key:
    """Return the key of the rotated dimensions of a head; ``factor`` is transformers' default share."""

    def read(config: Fields) -> int:
        rope = rope_of(config)
        part = config.number(name, factor)
        part = rope.number("partial_rotary_factor", part)
        return int(config.integer("hidden_size") // config.integer("num_attention_heads", low=1) * part)

    return computed("u32", read)


CLASSIC_KEYS = {
    name: key
    for name, key in DECODER_KEYS.items()
    if name not in ("attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length")
}
GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")  # names of the same function
