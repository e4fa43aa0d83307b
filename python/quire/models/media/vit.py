"""Blocks of vision transformers: norm, attention in both directions, norm, MLP, each with a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..._native.graph import Weight, multiply_weight, slice
from ...errors import LoadError
from ...media.pixels import Floats
from ...nn import MLP, GatedMLP, Keys, LayerNorm, Linear, RMSNorm, RopeSpec, Step, Tensor, Weights, activate, rope

if TYPE_CHECKING:
    from ..._native.graph import Activation

__all__ = [
    "Attention",
    "Block",
    "Projector",
    "VisionTransformer",
    "axial_rope",
    "embedded",
    "ffn_width",
    "patch_embedding",
]

# One tensor for each frame of a pair.
FRAMES = ("patch_embd.weight", "patch_embd.weight.1")


def patch_embedding(weights: Weights, dim: int, patch_size: int, *, n_frames: int = 1) -> Linear:
    """Return the product that embeds patches ``[3 * n_frames * patch_size ** 2]``, with a bias if the file has one."""
    kernels = [weights.dequantized(name, (dim, 3, patch_size, patch_size)) for name in FRAMES[:n_frames]]
    rows = weights.computed("patch_embd.rows", np.stack(kernels, axis=2).reshape(dim, -1))
    has_bias = weights.has("patch_embd.bias")
    return Linear(rows, weights.tensor("patch_embd.bias", (dim,), vector=True) if has_bias else None)


def embedded(step: Step, embedding: Linear, patch_dim: int, dim: int) -> Tensor:
    """Return the embeddings ``[patches, dim]`` of ``step.features``: patches, and position embeddings to add."""
    inputs = step.features(patch_dim + dim)
    return embedding(slice(inputs, 0, 0, patch_dim)) + slice(inputs, 0, patch_dim, patch_dim + dim)


def axial_rope(weights: Weights, head_dim: int, theta: float = 10000.0, *, alternating: bool = False) -> RopeSpec:
    """Return RoPE whose first half of pairs rotates by the row, the second by the column.

    RopeSpec has one series of frequencies over all pairs.  With the base squared, its first half is the series of half
    as many pairs; the factors rescale the second half to repeat it.

    Args:
        weights: Where the factors are kept.
        head_dim: Dimensions of a head, all of which are rotated.
        theta: The base of the frequencies.
        alternating: Rows take every other frequency of the series of all pairs, columns those between.
    """
    quarter = head_dim // 4
    second = theta ** (2 / head_dim) / theta if alternating else 1 / theta
    factors = weights.computed("rope_factors", np.repeat(np.array([1.0, second], np.float32), quarter))
    return RopeSpec(n_dims=head_dim, layout="half", freq_base=theta**2, factors=factors, sections=(0, quarter, quarter))


def ffn_width(weights: Weights, dim: int) -> int:
    """Return the width of the first layer's MLP.  Keys differ from it in files of several converters."""
    rows = weights.n_rows("blk.0.ffn_up.weight")
    return rows if rows != dim else weights.n_rows("blk.0.ffn_down.weight")


def _norm(weights: Weights, name: str, dim: int, eps: float) -> LayerNorm | RMSNorm:
    """Return a norm: LayerNorm if the file has its bias, else RMSNorm."""
    return weights.layer_norm(name, dim, eps) if weights.has(f"{name}.bias") else weights.norm(name, dim, eps)


class Attention:
    """Attention among all patches of a view.

    ``is_paired``: the file stores the rows of q and k in pairs (``interleaved``), which are rotated as halves.
    ``eps``: of the norms of q and k, if the file has them: of whole rows, or of heads.
    """

    def __init__(
        self,
        weights: Weights,
        dim: int,
        n_head: int,
        rotation: RopeSpec | None = None,
        *,
        is_paired: bool = False,
        eps: float = 0.0,
    ) -> None:
        self.n_head, self.scale, self.rotation = n_head, (dim // n_head) ** -0.5, rotation
        if is_paired and weights.has("attn_qkv.weight"):
            fused = weights.halves("attn_qkv", dim, 3 * dim, 2 * n_head, n_plain=dim)
            self.q, self.k, self.v = (fused.part(i * dim, (i + 1) * dim) for i in range(3))
        elif is_paired:
            self.q, self.k = (weights.halves(f"attn_{name}", dim, dim, n_head) for name in "qk")
            self.v = weights.linear("attn_v", dim, dim, bias=None)
        elif weights.has("attn_qkv.weight"):
            self.q, self.k, self.v = weights.linears("attn_qkv", dim, [dim] * 3, bias=None)
        else:
            self.q, self.k, self.v = (weights.linear(f"attn_{name}", dim, dim, bias=None) for name in "qkv")
        norms = [name for name in ("attn_q_norm", "attn_k_norm") if weights.has(f"{name}.weight")]
        self.norms_heads = bool(norms) and weights.n_rows(f"{norms[0]}.weight") == dim // n_head != dim
        self.norms = [weights.norm(name, dim // n_head if self.norms_heads else dim, eps) for name in norms]
        self.o = weights.linear("attn_out", dim, dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.norms and not self.norms_heads:
            q, k = (norm(y) for norm, y in zip(self.norms, (q, k), strict=True))
        q, k, v = (y.heads(self.n_head) for y in (q, k, v))
        if self.norms and self.norms_heads:
            q, k = (norm(y) for norm, y in zip(self.norms, (q, k), strict=True))
        if self.rotation is not None:
            q, k = (rope(heads, step.positions, self.rotation) for heads in (q, k))
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale))


class Block:
    """One layer, with a factor for each channel of the results (``ls1``, ``ls2``) if the file has them.

    Args:
        weights: The layer's weights; with ``ffn_gate``, the MLP is gated.
        dim: Width.
        ffn_dim: Width of the MLP.
        n_head: Heads.
        eps: Epsilon of the norms.
        activation: Of the MLP.
        rotation: RoPE of queries and keys.
        is_rms: Norms are root-mean-square, else layer norms with a bias; None: as in the file.
        is_paired: See ``Attention``.
    """

    def __init__(
        self,
        weights: Weights,
        dim: int,
        ffn_dim: int,
        n_head: int,
        *,
        eps: float,
        activation: Activation | Callable[[Tensor], Tensor],
        rotation: RopeSpec | None = None,
        is_rms: bool | None = False,
        is_paired: bool = False,
    ) -> None:
        if is_rms is None:
            is_rms = not weights.has("ln1.bias")
        # llama.cpp's converter of October 2026 calls Llama 4's so, but does not compute it as that.
        second = "ln2" if weights.has("ln2.weight") else "attn_post_norm"
        self.attn_norm, self.mlp_norm = (
            weights.norm(name, dim, eps) if is_rms else weights.layer_norm(name, dim, eps, bias=True)
            for name in ("ln1", second)
        )
        self.attention = Attention(weights, dim, n_head, rotation, is_paired=is_paired, eps=eps)
        # Early files of llama.cpp exchange the names.
        is_swapped = weights.n_rows("ffn_up.weight") == dim != ffn_dim
        names = ("ffn_down", "ffn_up") if is_swapped else ("ffn_up", "ffn_down")
        self.mlp: GatedMLP | MLP
        if weights.has("ffn_gate.weight") and not callable(activation):
            self.mlp = GatedMLP(weights, dim, ffn_dim, activation, names=names)
        else:
            self.mlp = MLP(weights, dim, ffn_dim, activation, names=names)
        self.attn_scale, self.mlp_scale = (
            weights.tensor(f"{name}.weight", (dim,), vector=True) if weights.has(f"{name}.weight") else None
            for name in ("ls1", "ls2")
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + _scaled(self.attention(self.attn_norm(x), step), self.attn_scale)
        return x + _scaled(self.mlp(self.mlp_norm(x)), self.mlp_scale)


def _scaled(x: Tensor, factors: Weight | None) -> Tensor:
    return x if factors is None else multiply_weight(x, factors)


class Projector:
    """``down(gelu(up(x)))``, from the encoder's width to the language model's; ``names`` are those of up and down."""

    def __init__(self, weights: Weights, names: tuple[str, str], n_in: int, n_hidden: int, n_out: int) -> None:
        self.up = weights.linear(names[0], n_in, n_hidden, bias=None)
        self.down = weights.linear(names[1], n_hidden, n_out, bias=None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(activate(self.up(x), "gelu"))


def _table(weights: Weights, name: str, dim: int) -> Floats:
    """Return a tensor as rows of ``dim`` numbers; llama.cpp's files keep further dimensions of checkpoints."""
    shape = weights.shape(name)
    return weights.numbers(name, shape if shape[-1] == dim else (len(shape), dim)).reshape(-1, dim)


class VisionTransformer:
    """Patches with learned position embeddings, perhaps after a class token; a norm before and after the blocks if the
    file has it.

    Attributes:
        dim: Width of the hidden states.
        n_layer: Number of blocks.
        patch_dim: Numbers of a patch.
        patch_size: Side of a patch, in pixels.
        positions: float32 [n_positions, dim], position embeddings of patches.
    """

    def __init__(
        self, keys: Keys, weights: Weights, *, gelu: Activation, other: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Read the encoder's part of a file.

        Args:
            keys: The file's keys.
            weights: The file's tensors.
            gelu: The activation that ``use_gelu`` means for the family.
            other: The activation of files without ``use_gelu``; None: there are none.
        """
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, self.n_layer, self.patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        keys.without_effect("vision.feed_forward_length")
        n_head, eps = read["attention.head_count"], keys.number("vision.attention.layer_norm_epsilon")
        if self.dim % n_head:
            raise LoadError(f"[clip] embedding_length {self.dim} does not divide into {n_head} heads")
        self.patch_dim = 3 * self.patch_size**2
        activation: Activation | Callable[[Tensor], Tensor] = gelu
        if other is None:
            keys.only("use_gelu", True)
        elif not keys.flag("use_gelu", False):
            activation = other

        shape = (self.dim, 3, self.patch_size, self.patch_size)
        kernel = weights.dequantized("patch_embd.weight", shape).reshape(self.dim, self.patch_dim)
        self.patch_embedding = Linear(weights.computed("patch_embd.rows", kernel))
        places = _table(weights, "position_embd.weight", self.dim)
        self.class_row: Floats | None = None
        if weights.has("class_embd"):
            self.class_row = _table(weights, "class_embd", self.dim)[0] + places[0]
            places = places[1:]
        # The class token has no patch, so the bias of patches is added here.
        has_bias = weights.has("patch_embd.bias")
        self.positions = places + weights.numbers("patch_embd.bias", (self.dim,)) if has_bias else places
        self.first_norm = _norm(weights, "pre_ln", self.dim, eps) if weights.has("pre_ln.weight") else None
        ffn_dim = ffn_width(weights, self.dim)
        self.blocks = [
            Block(block, self.dim, ffn_dim, n_head, eps=eps, activation=activation, is_rms=None)
            for block in weights.blocks(self.n_layer)
        ]
        self.norm = _norm(weights, "post_ln", self.dim, eps) if weights.has("post_ln.weight") else None

    def features(self, patches: Floats, positions: Floats) -> Floats:
        """Return the encoder's input for patches with these position embeddings."""
        if self.class_row is not None:
            patches = np.concatenate([np.zeros((1, self.patch_dim), np.float32), patches])
            positions = np.concatenate([self.class_row[None], positions])
        return np.concatenate([patches, positions], axis=1)

    def encode(self, step: Step) -> Tensor:
        """Return the hidden states, those of the class token first."""
        x = embedded(step, self.patch_embedding, self.patch_dim, self.dim)
        if self.first_norm is not None:
            x = self.first_norm(x)
        x = step.run_layers(self.blocks, x)
        return x if self.norm is None else self.norm(x)


SIZES = ("embedding_length", "block_count", "attention.head_count", "patch_size")
