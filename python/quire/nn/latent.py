"""Multi-head latent attention (DeepSeek-AI 2024): one row of a small rank is cached for all heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .._native import graph
from .._native.graph import CacheSpec, RopeSpec, Weight
from .._native.graph import TraceTensor as Tensor
from ..errors import LoadError
from .keys import Keys
from .layers import Linear
from .rotary import Layout, LongRope, Scaling, rope_spec
from .step import Step
from .weights import Weights

MAX_RANK = 1 << 14


@dataclass(frozen=True)
class LatentSizes:
    """The sizes of latent attention.  ``q_rank`` 0: queries come from a single product."""

    n_head: int
    q_rank: int
    rank: int
    n_nope: int  # dimensions of a head's query and key that are not rotated
    n_rot: int  # dimensions that are rotated
    v_dim: int
    eps: float  # for the norms of latent rows, if files give it separately; else 0

    @classmethod
    def read(cls, keys: Keys, n_head: int, head_dim: int, v_dim: int) -> LatentSizes:
        """Read the sizes; ``head_dim`` and ``v_dim`` are those of a head with its own (expanded) keys and values."""
        n_rot = keys.integer("rope.dimension_count", low=2, high=max(2, head_dim - 1))
        if n_rot % 2 or head_dim <= n_rot:
            raise LoadError(
                f"[{keys.arch}] invalid rope.dimension_count {n_rot}: expected an even number below {head_dim}"
            )
        return cls(
            n_head=n_head,
            q_rank=keys.integer("attention.q_lora_rank", 0, high=MAX_RANK),
            rank=keys.integer("attention.kv_lora_rank", low=1, high=MAX_RANK),
            n_nope=head_dim - n_rot,
            n_rot=n_rot,
            v_dim=v_dim,
            eps=_latent_eps(keys),
        )

    @property
    def head_dim(self) -> int:
        return self.n_nope + self.n_rot

    @property
    def widest(self) -> int:
        """Return the width of a row's queries in the absorbed form."""
        return self.n_head * (self.rank + self.n_rot)

    def cache(self, n_layer: int) -> list[CacheSpec]:
        return [CacheSpec.latent(rank=self.rank, n_rot=self.n_rot)] * n_layer


# Picks tokens (``Step.pick``) by a layer's input and what its queries are made of.
Picker = Callable[[Tensor, Tensor, Step], Tensor | None]


class LatentAttention:
    """Latent attention in its absorbed form.

    A head's key is ``k_b`` times the latent row c, so ``q . (k_b c)`` equals ``(k_b^T q) . c``: queries are projected
    to the latent space, all heads attend to the cached row itself, and ``v_b`` turns the result into a head's value.
    """

    def __init__(
        self,
        weights: Weights,
        dim: int,
        sizes: LatentSizes,
        layer: int,
        *,
        eps: float,
        rotation: RopeSpec | LongRope | None,
        scale: float,
        beta: float = 0.0,
        n_ctx_orig: int = 1,
    ) -> None:
        """Declare the weights of a layer.

        Args:
            weights: The layer's weights.
            dim: The model's width.
            sizes: The sizes of heads and latent rows.
            layer: The layer of the cache.
            eps: The epsilon of norms, unless ``sizes`` has one.
            rotation: None: without rotation.
            scale: The factor of the scores.
            beta: Queries grow by ``1 + beta * log(1 + floor(position / n_ctx_orig))``.
            n_ctx_orig: See ``beta``.
        """
        self.sizes, self.layer, self.rotation, self.scale = sizes, layer, rotation, scale
        eps = sizes.eps or eps
        self.beta, self.n_ctx_orig = beta, n_ctx_orig
        self.q_a = weights.linear("attn_q_a", dim, sizes.q_rank) if sizes.q_rank else None
        self.q_a_norm = weights.norm("attn_q_a_norm", sizes.q_rank, eps) if sizes.q_rank else None
        self.q = self.query_product(weights, dim)
        self.kv_a = weights.linear("attn_kv_a_mqa", dim, sizes.rank + sizes.n_rot)
        self.kv_a_norm = weights.norm("attn_kv_a_norm", sizes.rank, eps)
        self.k_b, self.v_b = expanding(weights, sizes)
        self.o = weights.linear("attn_output", sizes.n_head * sizes.v_dim, dim)
        self.sinks: Weight | None = None  # [n_head], extra logits of the scores
        self.picker: Picker | None = None  # picks the tokens that are attended to; None: all

    def query_product(self, weights: Weights, dim: int) -> Linear:
        n_q = self.sizes.n_head * self.sizes.head_dim
        return (
            weights.linear("attn_q_b", self.sizes.q_rank, n_q)
            if self.sizes.q_rank
            else weights.linear("attn_q", dim, n_q)
        )

    def queries(self, latent_q: Tensor) -> Tensor:
        """Return the heads' queries ``[tokens, n_head, head_dim]``."""
        return self.q(latent_q).heads(self.sizes.n_head)

    def latent_queries(self, x: Tensor) -> Tensor:
        """Return what queries are made of: ``[tokens, q_rank]``, or x if they come from a single product."""
        return x if self.q_a is None or self.q_a_norm is None else self.q_a_norm(self.q_a(x))

    def placed(self, x: Tensor, step: Step) -> Tensor:
        """Rotate heads by their positions."""
        rotation = self.rotation.of(step.n_ctx) if isinstance(self.rotation, LongRope) else self.rotation
        return x if rotation is None else graph.rope(x, step.positions, rotation)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        sizes, latent_q, kv = self.sizes, self.latent_queries(x), self.kv_a(x)
        q = self.queries(latent_q)
        q_rot = self.placed(graph.slice(q, 0, sizes.n_nope, sizes.head_dim), step)
        k_rot = self.placed(self.key_to_rotate(graph.slice(kv, 0, sizes.rank, sizes.rank + sizes.n_rot)).heads(1), step)
        latent = self.kv_a_norm(graph.slice(kv, 0, 0, sizes.rank))
        q = graph.concat(graph.head_linear(graph.slice(q, 0, 0, sizes.n_nope), self.k_b), q_rot, 0)
        if self.beta:
            q = graph.scale_by_position(q, step.positions, beta=self.beta, n_ctx=self.n_ctx_orig)
        k = graph.concat(latent.heads(1), k_rot, 0)
        picked = None if self.picker is None else self.picker(x, latent_q, step)
        y = step.attend_latent(self.layer, q, k, scale=self.scale, sinks=self.sinks, picked=picked)
        return self.o(self.gated(graph.head_linear(y, self.v_b), x))

    def key_to_rotate(self, k: Tensor) -> Tensor:
        """Return the part of the keys that is rotated ``[tokens, n_rot]``; some models normalize it."""
        return k

    def gated(self, y: Tensor, x: Tensor) -> Tensor:
        """Merge the heads' outputs y; x is the layer's input, from which gated models compute factors."""
        return y.merge_heads()


def _latent_eps(keys: Keys) -> float:
    """Read Quire's own key: transformers always uses 1e-6 here, llama.cpp the epsilon of the other norms."""
    name = "attention.latent_norm_rms_epsilon"
    if not keys.has(name):
        return 0.0
    if not 0 < (eps := keys.number(name)) < 1:
        raise LoadError(f"[{keys.arch}] {name} {eps} is out of range: expected between 0 and 1")
    return eps


def expanding(weights: Weights, sizes: LatentSizes) -> tuple[Weight, Weight]:
    """Take ``k_b [n_head, rank, n_nope]`` and ``v_b [n_head, v_dim, rank]``; older files have them in one tensor."""
    if weights.has("attn_k_b.weight"):
        k_b = weights.tensor("attn_k_b.weight", (sizes.n_head, sizes.rank, sizes.n_nope))
        return k_b, weights.tensor("attn_v_b.weight", (sizes.n_head, sizes.v_dim, sizes.rank))
    both = weights.dequantized("attn_kv_b.weight", (sizes.n_head * (sizes.n_nope + sizes.v_dim), sizes.rank))
    both = both.reshape(sizes.n_head, sizes.n_nope + sizes.v_dim, sizes.rank)
    return (
        weights.computed("attn_k_b.weight", both[:, : sizes.n_nope].swapaxes(1, 2)),
        weights.computed("attn_v_b.weight", both[:, sizes.n_nope :]),
    )


def latent_rope(keys: Keys, *, n_dims: int, layout: Layout) -> tuple[RopeSpec, float]:
    """Return the rotation, and the factor of the scores beside ``head_dim ** -0.5``.

    With YaRN, ``yarn_log_multiplier`` (0.1 times DeepSeek's ``mscale_all_dim``) says how much longer contexts sharpen
    attention.  Rotations then have no factor except ``attn_factor``.
    """
    keys.only("rope.scaling.yarn_attn_factor")
    scaling = Scaling.read(keys)
    if scaling.kind != "yarn":
        keys.only("rope.scaling.attn_factor", 1.0)
        keys.only("rope.scaling.factor", 0.0, 1.0)
        keys.only("rope.scale_linear", 0.0, 1.0)
        return rope_spec(keys, n_dims=n_dims, layout=layout), 1.0
    own, multiplier = 1.0 + 0.1 * math.log(scaling.factor), keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    factor = scaling.attention * (1.0 if multiplier else own)
    rotation = rope_spec(keys, n_dims=n_dims, layout=layout, attn_factor=factor / own)
    return rotation, (factor * (1.0 + multiplier * math.log(scaling.factor))) ** 2
