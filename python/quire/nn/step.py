"""The step: the argument of a model's forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .._native import graph
from .._native.graph import Tracer, Weight
from .._native.graph import TraceTensor as Tensor
from .steering import Steering


@dataclass(frozen=True)
class Step:
    """One step of decoding: some tokens of some sequences.

    Attributes:
        tracer: Records the operations.
        n_ctx: The longest context that the model will run with; LongRoPE and position tables depend on it.
        taps: Layers after which the hidden state can be read.
        has_predictor: A predictor reads this model's features.
        kept: Layers whose hidden states are stored in ``states``; -1 is the input of the first layer.
        states: The hidden states of ``kept`` layers.
        media_width: Numbers of a row that an image or a sound puts in place of a token's embedding; 0: text only.
        steering: Control vectors, whose scales a step brings for each token behind the numbers of media.
    """

    tracer: Tracer
    n_ctx: int
    taps: frozenset[int] = frozenset()
    has_predictor: bool = False
    kept: frozenset[int] = frozenset()
    states: dict[int, Tensor] = field(default_factory=dict)
    media_width: int = 0
    media_rows: list[Tensor] = field(default_factory=list)
    steering: Steering | None = None
    steered: list[int] = field(default_factory=list)
    beside: list[Tensor] = field(default_factory=list)

    @property
    def tokens(self) -> Tensor:
        """Token ids, int32 ``[tokens]``."""
        return self.tracer.tokens

    @property
    def positions(self) -> Tensor:
        """The position of each token in its sequence, int32 ``[tokens]``."""
        return self.tracer.positions

    @property
    def token_types(self) -> Tensor:
        """Token types, int32 ``[tokens]``: 1 in the second text of a pair, else 0."""
        return self.tracer.token_types

    @property
    def logit_rows(self) -> Tensor:
        """The tokens that need logits, int32 ``[rows]``."""
        return self.tracer.logit_rows

    def run_layers(self, layers: Iterable[Callable[[Tensor, Step], Tensor]], x: Tensor) -> Tensor:
        """Run the layers in order; the output of tapped layers can be read."""
        self.after_layer(-1, x)
        for i, layer in enumerate(layers):
            x = self.after_layer(i, self._steered(i, self._with_deep_rows(i, layer(x, self))))
        return x

    def with_media(self, x: Tensor) -> Tensor:
        """Return the embeddings ``[tokens, n]`` with the rows of images and sounds in their places.

        What a step brings is a row of ``1 + media_width`` numbers for each token: 1 and zeros, or 0 and the row of an
        image, whose first ``n`` numbers are its embedding.  The others, ``n`` at a time, are added to the hidden states
        after the first layers (Qwen3-VL's deep stack).
        """
        if not self.media_width:
            return x
        rows, n = self._beside_tokens(), x.shape[1]
        assert isinstance(n, int)
        is_token = graph.slice(rows, 0, 0, 1)
        self.media_rows[:] = [graph.slice(rows, 0, begin, begin + n) for begin in range(1, 1 + self.media_width, n)]
        return graph.multiply_broadcast(x, is_token) + self.media_rows[0]

    def _beside_tokens(self) -> Tensor:
        if not self.beside:
            n_steering = 0 if self.steering is None else self.steering.n
            self.beside.append(self.features(1 + self.media_width + n_steering))
        return self.beside[0]

    def _steered(self, layer: int, x: Tensor) -> Tensor:
        directions = None if self.steering is None else self.steering.layers.get(layer)
        if self.steering is None or directions is None:
            return x
        self.steered.append(layer)
        begin = 1 + self.media_width
        return x + graph.linear(graph.slice(self._beside_tokens(), 0, begin, begin + self.steering.n), directions)

    def _with_deep_rows(self, layer: int, x: Tensor) -> Tensor:
        return x + self.media_rows[layer + 1] if layer + 1 < len(self.media_rows) else x

    def after_layer(self, layer: int, x: Tensor) -> Tensor:
        """Return ``x``, the hidden state ``[tokens, n]`` after a layer; record it if the layer is tapped or kept."""
        if layer in self.taps:
            self.tracer.tap(layer, x)
        if layer in self.kept:
            self.states[layer] = x
        return x

    def features(self, n: int) -> Tensor:
        """Return a predictor's input, ``[tokens, n]``: the model's features one position before each token."""
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
        picked: Tensor | None = None,
    ) -> Tensor:
        """Cache k and v ``[tokens, n_kv_head, head_dim]``, attend q ``[tokens, n_head, head_dim]`` to them.

        Args:
            layer: The layer of the cache.
            q: Queries.
            k: Keys.
            v: Values.
            scale: The factor of the scores.
            soft_cap: Limit of the scores' magnitude, by tanh; 0: none.
            sinks: ``[n_head]``, an extra logit for each head.
            bias: ``[n_head, n]``, added to scores by distance (``graph.attend``).
            picked: The result of ``pick`` or ``pick_blocks``: what is attended to.

        Returns:
            ``[tokens, n_head * head_dim]``.
        """
        return graph.attend(
            layer, q, k, v, scale=scale, soft_cap=soft_cap, sinks=sinks, bias=bias, picked=picked
        ).merge_heads()

    def pick(self, layer: int, q: Tensor, k: Tensor, weights: Tensor, *, n_picked: int) -> Tensor:
        """Pick the tokens that each row attends to: the ``n_picked`` with the largest ``weights * max(q . k, 0)``.

        Args:
            layer: The layer of the cache where k is kept (``CacheSpec.latent``).
            q: ``[tokens, n_head, head_dim]``.
            k: ``[tokens, 1, head_dim]``.
            weights: ``[tokens, n_head]``.
            n_picked: The number of tokens.
        """
        return graph.pick(layer, q, k, weights, n_picked=n_picked, n_ctx=self.n_ctx)

    def pick_blocks(self, layer: int, q: Tensor, k: Tensor, *, block: int, n_picked: int, n_local: int) -> Tensor:
        """Pick the blocks of tokens that each row and head attends to: those with the largest ``q . k`` of any token.

        Args:
            layer: The layer of the cache where k is kept (``CacheSpec.latent``).
            q: ``[tokens, n_head, head_dim]``; each head picks for as many heads of K and V.
            k: ``[tokens, 1, head_dim]``.
            block: The tokens of a block, a multiple of 32.
            n_picked: The number of blocks.
            n_local: The last blocks, the row's own one included, which are always picked.
        """
        return graph.pick_blocks(layer, q, k, block=block, n_picked=n_picked, n_local=n_local)

    def attend_latent(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        *,
        scale: float,
        sinks: Weight | None = None,
        picked: Tensor | None = None,
    ) -> Tensor:
        """Cache k ``[tokens, 1, rank + n_rot]`` of a latent layer, attend q ``[tokens, n_head, rank + n_rot]`` to it.

        The first ``rank`` dimensions of keys are the values.  Returns ``[tokens, n_head, rank]``.
        """
        return graph.attend_latent(layer, q, k, scale=scale, sinks=sinks, picked=picked)

    def attend_again(
        self, layer: int, q: Tensor, *, scale: float, soft_cap: float = 0.0, sinks: Weight | None = None
    ) -> Tensor:
        """Attend q to the keys and values that ``attend`` cached for another layer."""
        return graph.attend_to_written(layer, q, scale=scale, soft_cap=soft_cap, sinks=sinks).merge_heads()

    def write_source(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store an encoder's k and v ``[tokens, n_kv_head, head_dim]`` for ``attend_to_source``."""
        graph.write_source(layer, k, v)

    def attend_to_source(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        """Attend q ``[tokens, n_head, head_dim]`` to all rows of the source (cross attention).

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
        related: Tensor | None = None,
    ) -> Tensor:
        """Attend in both directions: each token to all tokens of its sequence, later ones too.  Nothing is cached."""
        return graph.attend_rows(
            q, k, v, scale=scale, soft_cap=soft_cap, window=window, bias=bias, related=related
        ).merge_heads()

    def relate(self, by_row: Tensor, by_token: Tensor, buckets: Sequence[int]) -> Tensor:
        """Return scores of pairs of tokens that depend on their distance and on both, for ``attend_both_ways``.

        Args:
            by_row: ``[tokens, n_head, n]``, each row's number for each bucket of distances.
            by_token: The same of the token that is attended to; both numbers are added.
            buckets: The bucket of each distance: the middle one for the token itself, later ones for later tokens.
        """
        return graph.relate(by_row, by_token, buckets=buckets, n_ctx=self.n_ctx)
