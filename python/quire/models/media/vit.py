"""Blocks of vision transformers: norm, attention in both directions, norm, MLP, each with a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...nn import MLP, GatedMLP, Linear, RopeSpec, Step, Tensor, Weights, activate, rope

if TYPE_CHECKING:
    from ..._native.graph import Activation

__all__ = ["Attention", "Block", "Projector", "axial_rope", "ffn_width", "patch_embedding"]

# One tensor for each frame of a pair.
FRAMES = ("patch_embd.weight", "patch_embd.weight.1")


def patch_embedding(weights: Weights, dim: int, patch_size: int, *, n_frames: int = 1) -> Linear:
    """Return the product that embeds patches ``[3 * n_frames * patch_size ** 2]``, with a bias if the file has one."""
    kernels = [weights.dequantized(name, (dim, 3, patch_size, patch_size)) for name in FRAMES[:n_frames]]
    rows = weights.computed("patch_embd.rows", np.stack(kernels, axis=2).reshape(dim, -1))
    has_bias = weights.has("patch_embd.bias")
    return Linear(rows, weights.tensor("patch_embd.bias", (dim,), vector=True) if has_bias else None)


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


class Attention:
    """Attention among all patches of a view.

    ``is_paired``: the file stores the rows of q and k in pairs (``interleaved``), which are rotated as halves.
    """

    def __init__(
        self,
        weights: Weights,
        dim: int,
        n_head: int,
        rotation: RopeSpec | None = None,
        *,
        is_paired: bool = False,
    ) -> None:
        self.n_head, self.scale, self.rotation = n_head, (dim // n_head) ** -0.5, rotation
        if is_paired:
            self.q, self.k = (weights.halves(f"attn_{name}", dim, dim, n_head) for name in "qk")
            self.v = weights.linear("attn_v", dim, dim, bias=None)
        elif weights.has("attn_qkv.weight"):
            self.q, self.k, self.v = weights.linears("attn_qkv", dim, [dim] * 3, bias=None)
        else:
            self.q, self.k, self.v = (weights.linear(f"attn_{name}", dim, dim, bias=None) for name in "qkv")
        self.o = weights.linear("attn_out", dim, dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x).heads(self.n_head) for linear in (self.q, self.k, self.v))
        if self.rotation is not None:
            q, k = (rope(heads, step.positions, self.rotation) for heads in (q, k))
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale))


class Block:
    """One layer.

    Args:
        weights: The layer's weights; with ``ffn_gate``, the MLP is gated.
        dim: Width.
        ffn_dim: Width of the MLP.
        n_head: Heads.
        eps: Epsilon of the norms.
        activation: Of the MLP.
        rotation: RoPE of queries and keys.
        is_rms: Norms are root-mean-square, else layer norms with a bias.
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
        is_rms: bool = False,
        is_paired: bool = False,
    ) -> None:
        self.attn_norm, self.mlp_norm = (
            weights.norm(name, dim, eps) if is_rms else weights.layer_norm(name, dim, eps, bias=True)
            for name in ("ln1", "ln2")
        )
        self.attention = Attention(weights, dim, n_head, rotation, is_paired=is_paired)
        # Early files of llama.cpp exchange the names.
        is_swapped = weights.n_rows("ffn_up.weight") == dim != ffn_dim
        names = ("ffn_down", "ffn_up") if is_swapped else ("ffn_up", "ffn_down")
        self.mlp: GatedMLP | MLP
        if weights.has("ffn_gate.weight") and not callable(activation):
            self.mlp = GatedMLP(weights, dim, ffn_dim, activation, names=names)
        else:
            self.mlp = MLP(weights, dim, ffn_dim, activation, names=names)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))


class Projector:
    """``down(gelu(up(x)))``, from the encoder's width to the language model's; ``names`` are those of up and down."""

    def __init__(self, weights: Weights, names: tuple[str, str], n_in: int, n_hidden: int, n_out: int) -> None:
        self.up = weights.linear(names[0], n_in, n_hidden, bias=None)
        self.down = weights.linear(names[1], n_hidden, n_out, bias=None)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(activate(self.up(x), "gelu"))
