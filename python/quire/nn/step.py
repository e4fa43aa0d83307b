"""What a forward pass is given: the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .._native import graph
from .._native.graph import Tracer, Weight
from .._native.graph import TraceTensor as Tensor


@dataclass(frozen=True)
class Step:
    """One step of decoding: some tokens of some sequences.

    ``n_ctx``: the longest context that the model will be run with, where that matters (longrope).  ``taps``: layers
    after which the hidden state is to be read.  ``has_predictor``: a predictor reads what this model shows it.
    ``kept``: layers whose hidden states are noted in ``states``; -1: what goes into the first layer.
    """

    tracer: Tracer
    n_ctx: int
    taps: frozenset[int] = frozenset()
    has_predictor: bool = False
    kept: frozenset[int] = frozenset()
    states: dict[int, Tensor] = field(default_factory=dict)

    @property
    def tokens(self) -> Tensor:
        """int32 ``[tokens]``: ids."""
        return self.tracer.tokens

    @property
    def positions(self) -> Tensor:
        """int32 ``[tokens]``: position of each token in its sequence."""
        return self.tracer.positions

    @property
    def token_types(self) -> Tensor:
        """int32 ``[tokens]``: 1 in the second text of a pair, else 0."""
        return self.tracer.token_types

    @property
    def logit_rows(self) -> Tensor:
        """int32 ``[rows]``: which tokens need logits."""
        return self.tracer.logit_rows

    def run_layers(self, layers: Iterable[Callable[[Tensor, Step], Tensor]], x: Tensor) -> Tensor:
        """One layer after the other; what each that is tapped leaves can be read."""
        self.after_layer(-1, x)
        for i, layer in enumerate(layers):
            x = self.after_layer(i, layer(x, self))
        return x

    def after_layer(self, layer: int, x: Tensor) -> Tensor:
        """``x`` itself, the hidden state ``[tokens, n]`` after a layer, declared where the layer is tapped."""
        if layer in self.taps:
            self.tracer.tap(layer, x)
        if layer in self.kept:
            self.states[layer] = x
        return x

    def features(self, n: int) -> Tensor:
        """Of a predictor: ``[tokens, n]``, what the model has shown one position before each token."""
        return self.tracer.features(n)

    def show_features(self, x: Tensor) -> None:
        """Leave ``x [tokens, n]`` for a predictor."""
        self.tracer.show_features(x)

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
        bias: Weight | None = None,
    ) -> Tensor:
        """Cache k and v ``[tokens, n_kv_head, head_dim]``, attend q ``[tokens, n_head, head_dim]`` to them.

        Returns ``[tokens, n_head * head_dim]``.  ``bias [n_head, n]``: see ``graph.attend``.
        """
        return graph.attend(layer, q, k, v, scale=scale, soft_cap=soft_cap, sinks=sinks, bias=bias).merge_heads()

    def attend_latent(self, layer: int, q: Tensor, k: Tensor, *, scale: float) -> Tensor:
        """Cache k ``[tokens, 1, rank + n_rot]`` of a latent layer, attend q ``[tokens, n_head, rank + n_rot]`` to it.

        Values are the first ``rank`` numbers of keys.  Returns ``[tokens, n_head, rank]``.
        """
        return graph.attend_latent(layer, q, k, scale=scale)

    def attend_again(
        self, layer: int, q: Tensor, *, scale: float, soft_cap: float = 0.0, sinks: Weight | None = None
    ) -> Tensor:
        """Attend q to what ``attend`` has cached for another layer."""
        return graph.attend_to_written(layer, q, scale=scale, soft_cap=soft_cap, sinks=sinks).merge_heads()

    def write_source(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Of an encoder: keep k and v ``[tokens, n_kv_head, head_dim]`` for ``attend_to_source``."""
        graph.write_source(layer, k, v)

    def attend_to_source(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        """Cross attention: q ``[tokens, n_head, head_dim]`` to all rows of the source that the encoder has written.

        Returns ``[tokens, n_head * head_dim]``.
        """
        return graph.attend_to_written(layer, q, scale=scale).merge_heads()

    def attend_both_ways(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        soft_cap: float = 0.0,
        window: int = 0,
        bias: Weight | None = None,
    ) -> Tensor:
        """The tokens of a sequence attend to each other, later ones too; nothing is cached."""
        return graph.attend_rows(q, k, v, scale=scale, soft_cap=soft_cap, window=window, bias=bias).merge_heads()
