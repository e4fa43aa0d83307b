"""What a forward pass is given: the step."""

from __future__ import annotations

from dataclasses import dataclass

from .._native import graph
from .._native.graph import Tracer, Weight
from .._native.graph import TraceTensor as Tensor


@dataclass(frozen=True)
class Step:
    """One step of decoding: some tokens of some sequences."""

    tracer: Tracer

    @property
    def tokens(self) -> Tensor:
        """int32 ``[tokens]``: ids."""
        return self.tracer.tokens

    @property
    def positions(self) -> Tensor:
        """int32 ``[tokens]``: position of each token in its sequence."""
        return self.tracer.positions

    @property
    def logit_rows(self) -> Tensor:
        """int32 ``[rows]``: which tokens need logits."""
        return self.tracer.logit_rows

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        soft_cap: float = 0.0,
        sinks: Weight | None = None,
    ) -> Tensor:
        """Cache k and v ``[tokens, n_kv_head, head_dim]``, attend q ``[tokens, n_head, head_dim]`` to them.

        Returns ``[tokens, n_head * head_dim]``.
        """
        return graph.attend(layer, q, k, v, scale=scale, soft_cap=soft_cap, sinks=sinks).merge_heads()
