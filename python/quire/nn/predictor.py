"""Multi-token prediction (Gloeckle et al. 2024; DeepSeek-AI 2024): a layer of a model that predicts later tokens.

Row i reads the token after position i and the model's features of position i, and predicts the token after that one.
Further tokens are predicted from the predictor's own features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .._native import graph
from .._native.graph import CacheSpec
from .._native.graph import TraceTensor as Tensor
from .layers import Embedding, Linear, RMSNorm
from .step import Step

__all__ = ["Predictor"]


@dataclass(frozen=True)
class Predictor:
    """``head(norm(block(projection([embedding_norm(embedding); feature_norm(features)]))))``.

    ``is_normed``: features are hidden states after the norm that precedes a head (the model's or this one's), else
    before it.
    """

    dim: int
    cache: CacheSpec  # for its only layer, which has a cache of its own
    embedding: Embedding
    embedding_norm: RMSNorm
    feature_norm: RMSNorm
    projection: Linear
    block: Callable[[Tensor, Step], Tensor]
    norm: Callable[[Tensor], Tensor]
    head: Linear
    is_normed: bool

    def __call__(self, step: Step) -> Tensor:
        """Return logits ``["rows", n_vocab]``."""
        token, features = self.embedding(step.tokens), step.features(self.dim)
        both = graph.concat(self.embedding_norm(token), self.feature_norm(features), 0)
        x = self.block(self.projection(both), step)
        normed = self.norm(x)
        step.show_features(normed if self.is_normed else x)
        return self.head(graph.select_rows(normed, step.logit_rows))
