"""Compressed attention (DeepSeek-AI 2026): tokens share rows of keys and values, which are means of theirs.

A row attends to the last tokens as usual, and to earlier ones by their compressed rows.  If ``every`` is small, means
overlap, and an indexer with compressed rows of its own picks those that are attended to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._native import graph
from .._native.graph import CacheSpec, RopeSpec
from .._native.graph import TraceTensor as Tensor
from .step import Step
from .weights import Weights

OVERLAPPING = 4  # tokens that share a row in layers whose rows overlap, which have an indexer
Rotation = Callable[..., RopeSpec]  # with ``inverse`` or ``behind``


@dataclass(frozen=True)
class CompressedSizes:
    dim: int
    n_head: int
    head_dim: int  # the size of queries and of keys, which are values
    n_rot: int  # the last dimensions, which are rotated
    q_rank: int
    window: int
    n_group: int  # groups of heads that are projected separately
    o_rank: int  # numbers that each group is projected to
    eps: float
    index_n_head: int
    index_head_dim: int
    index_top_k: int


def placed(x: Tensor, n_rot: int, step: Step, rotation: RopeSpec) -> Tensor:
    """Rotate the last dimensions of heads."""
    head_dim = x.shape[-1]
    assert isinstance(head_dim, int)
    if n_rot == head_dim:
        return graph.rope(x, step.positions, rotation)
    first = head_dim - n_rot
    rotated = graph.rope(graph.slice(x, 0, first, head_dim), step.positions, rotation)
    return graph.concat(graph.slice(x, 0, 0, first), rotated, 0)


class Layers:
    """Numbers layers of the cache beside those of the model, one for each kind of rows that a layer keeps."""

    def __init__(self, n: int) -> None:
        self.n, self.specs = n, list[CacheSpec]()

    def add(self, spec: CacheSpec) -> int:
        self.specs.append(spec)
        return self.n + len(self.specs) - 1


class Compressor:
    """Makes a row of ``head_dim`` numbers from those of ``every`` tokens; ``layer`` keeps the last tokens' numbers."""

    def __init__(
        self, weights: Weights, name: str, sizes: CompressedSizes, layers: Layers, *, head_dim: int, every: int
    ) -> None:
        self.every, self.overlaps, self.n_rot = every, every == OVERLAPPING, sizes.n_rot
        width = 2 if self.overlaps else 1
        n = width * head_dim
        self.kv, self.gate = (weights.linear(f"{name}_{part}", sizes.dim, n) for part in ("kv", "gate"))
        bias = weights.dequantized(f"{name}_ape.weight", (every, n)).astype(np.float32)
        self.bias = weights.computed(f"{name}_ape.f32", bias)
        self.norm = weights.norm(f"{name}_norm", head_dim, sizes.eps)
        self.layer = layers.add(CacheSpec(n_kv_head=1, head_dim=n, window=width * every))
        self.compressed = layers.add(CacheSpec.latent(rank=head_dim, n_rot=0, every=every))

    def __call__(self, x: Tensor, step: Step, rotation: Rotation) -> Tensor:
        """Return ``[tokens, head_dim]``; only the rows of each ``every``-th token count."""
        rows = graph.compress(self.layer, self.kv(x), self.gate(x), self.bias, every=self.every, overlaps=self.overlaps)
        rows = self.norm(rows).heads(1)
        return placed(rows, self.n_rot, step, rotation(behind=self.every - 1)).merge_heads()


class CompressedIndexer:
    """Picks the compressed rows that each row attends to."""

    def __init__(self, weights: Weights, sizes: CompressedSizes, layers: Layers) -> None:
        self.sizes, head_dim = sizes, sizes.index_head_dim
        self.q = weights.linear("indexer.attn_q_b", sizes.q_rank, sizes.index_n_head * head_dim)
        self.weights = weights.linear("indexer.proj", sizes.dim, sizes.index_n_head)
        self.rows = Compressor(weights, "indexer_compressor", sizes, layers, head_dim=head_dim, every=OVERLAPPING)

    def __call__(self, x: Tensor, latent_q: Tensor, step: Step, rotation: Rotation) -> Tensor:
        sizes, rows = self.sizes, self.rows(x, step, rotation)
        q = placed(self.q(latent_q).heads(sizes.index_n_head), sizes.n_rot, step, rotation())
        return step.pick(self.rows.compressed, q, rows.heads(1), self.weights(x), n_picked=sizes.index_top_k)


class CompressedAttention:
    """Attention to the last tokens and, unless ``every`` is 0, to compressed rows of all earlier ones."""

    def __init__(
        self, weights: Weights, sizes: CompressedSizes, layers: Layers, *, layer: int, every: int, rotation: Rotation
    ) -> None:
        self.layer, self.sizes, self.rotation = layer, sizes, rotation
        dim, head_dim, n_q = sizes.dim, sizes.head_dim, sizes.n_head * sizes.head_dim
        self.q_a, self.q_a_norm = (
            weights.linear("attn_q_a", dim, sizes.q_rank),
            weights.norm("attn_q_a_norm", sizes.q_rank, sizes.eps),
        )
        self.q_b = weights.linear("attn_q_b", sizes.q_rank, n_q)
        self.kv = weights.linear("attn_kv", dim, head_dim)
        self.kv_norm = weights.norm("attn_kv_a_norm", head_dim, sizes.eps)
        self.sinks = weights.tensor("attn_sinks.weight", (sizes.n_head,), vector=True)
        self.o_a = weights.grouped("attn_output_a.weight", (sizes.n_group, sizes.o_rank, n_q // sizes.n_group))
        self.o_b = weights.linear("attn_output_b", sizes.n_group * sizes.o_rank, dim)
        how = {"head_dim": head_dim, "every": every}
        self.compressor = Compressor(weights, "attn_compressor", sizes, layers, **how) if every else None
        self.indexer = CompressedIndexer(weights, sizes, layers) if every == OVERLAPPING else None

    def cache(self) -> CacheSpec:
        sizes = self.sizes
        if self.compressor is not None:
            return CacheSpec.latent(rank=sizes.head_dim, n_rot=0, window=sizes.window)
        return CacheSpec(n_kv_head=1, head_dim=sizes.head_dim, window=sizes.window)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        sizes, rotation = self.sizes, self.rotation
        latent_q = self.q_a_norm(self.q_a(x))
        q = graph.rms_norm(self.q_b(latent_q).heads(sizes.n_head), None, sizes.eps)
        q = placed(q, sizes.n_rot, step, rotation())
        kv = placed(self.kv_norm(self.kv(x)).heads(1), sizes.n_rot, step, rotation())
        scale = sizes.head_dim**-0.5
        if self.compressor is None:
            y = step.attend(self.layer, q, kv, kv, scale=scale, sinks=self.sinks).heads(sizes.n_head)
        else:
            rows = self.compressor(x, step, rotation)
            picked = None if self.indexer is None else self.indexer(x, latent_q, step, rotation)
            y = graph.attend_compressed(
                self.layer, self.compressor.compressed, q, kv, rows, scale=scale, sinks=self.sinks, picked=picked
            )
        # Values are rotated as keys are, so that results are turned back.
        y = placed(y, sizes.n_rot, step, rotation(inverse=True))
        return self.o_b(graph.head_linear(y.merge_heads().heads(sizes.n_group), self.o_a).merge_heads())
