"""EAGLE-3 (Li et al. 2025): a head that predicts later tokens from hidden states of several of a model's layers.

A fusion combines these states into features, one row of the head's width.  Row i of the head reads the token after
position i and the features of position i, and predicts the token after that one.  Further tokens are predicted from the
head's own features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from .._native import graph
from .._native.graph import CacheSpec
from .._native.graph import TraceTensor as Tensor
from .layers import Embedding, Linear, RMSNorm
from .step import Step

__all__ = ["EagleHead", "Fusion"]


@dataclass(frozen=True)
class Fusion:
    """Combines the inputs of ``layers`` into features; the number of all layers stands for the last one's output."""

    layers: tuple[int, ...]
    norms: tuple[RMSNorm, ...]  # one for each state; empty: none
    norm: RMSNorm | None  # applied to the concatenated states
    projection: Linear

    def __call__(self, states: Sequence[Tensor]) -> Tensor:
        """Return features ``[tokens, dim]`` of states ``[tokens, n]``."""
        if self.norms:
            states = [norm(state) for norm, state in zip(self.norms, states, strict=True)]
        together = reduce(lambda left, right: graph.concat(left, right, 0), states)
        return self.projection(together if self.norm is None else self.norm(together))


@dataclass(frozen=True)
class EagleHead:
    """One layer, whose attention reads ``[embedding_norm(embedding); feature_norm(features)]``.

    ``adds_normed``: the residual stream starts with the features after their norm, else before it.  ``leaves_normed``:
    its own features are the hidden states after the norm that precedes the head, else before it.
    """

    dim: int
    cache: CacheSpec  # for its only layer, which has a cache of its own
    embedding: Embedding
    embedding_norm: RMSNorm
    feature_norm: RMSNorm
    attention: Callable[[Tensor, Step], Tensor]
    ffn_norm: RMSNorm
    mlp: Callable[[Tensor], Tensor]
    norm: RMSNorm
    head: Linear
    adds_normed: bool
    leaves_normed: bool

    def __call__(self, step: Step) -> Tensor:
        """Return logits ``["rows", n]`` of the tokens in the head's vocabulary."""
        features = step.features(self.dim)
        normed = self.feature_norm(features)
        token = self.embedding_norm(self.embedding(step.tokens))
        x = (normed if self.adds_normed else features) + self.attention(graph.concat(token, normed, 0), step)
        x = x + self.mlp(self.ffn_norm(x))
        y = self.norm(x)
        step.show_features(y if self.leaves_normed else x)
        return self.head(graph.select_rows(y, step.logit_rows))
