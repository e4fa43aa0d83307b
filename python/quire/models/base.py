"""What architectures share: sizes, the skeleton of a decoder, the protocol, tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from ..errors import LoadError, UnsupportedError
from ..nn import (
    CacheSpec,
    EagleHead,
    Embedding,
    ExpertConfig,
    Fusion,
    GatedMLP,
    Keys,
    Linear,
    Predictor,
    Step,
    Tensor,
    Trace,
    Tracer,
    Weights,
    experts_of,
    select_rows,
)

MAX_DIM = 1 << 20  # of any one dimension, so that products of a few stay far below 2^63
MAX_HEADS, MAX_HEAD_DIM, MAX_LAYERS = 4096, 1024, 1024

# Keys that change no answer: sizes that the tensors tell, how a file was made, and what the engine reads itself.
PREDICTOR = "nextn.eh_proj"  # the tensor by which a layer that predicts later tokens is known
PREDICTOR_NORMS = ("nextn.shared_head_norm", "layer_output_norm")  # what its norm is called
RANK = 4  # the value of pooling_type for scores of classes
WITHOUT_EFFECT = (
    "vocab_size", "pooling_type", "classifier.output_labels", "classifier.problem_type", "tensor_data_layout",
)  # fmt: skip
# Of classifiers, transformers' words: classes that exclude each other, that do not, and numbers that are no classes.
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


@dataclass(frozen=True)
class Config:
    """The sizes that every model has.  An architecture reads its other keys itself, or takes ``DenseConfig``."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    dim: int

    @classmethod
    def read(cls, keys: Keys, n_vocab: int) -> Config:
        """Raises LoadError naming the key that is absent, of another type or out of range."""
        return Config(
            arch=keys.arch,
            n_vocab=n_vocab,
            n_ctx_train=keys.integer("context_length", low=1),
            n_layer=keys.integer("block_count", low=1, high=MAX_LAYERS),
            dim=keys.integer("embedding_length", low=1, high=MAX_DIM),
        )

    @property
    def widest(self) -> int:
        """The length of a step's longest rows, by which memory is estimated."""
        return self.dim

    @property
    def is_encoder(self) -> bool:
        """Whether the model ends with vectors, and so generates nothing."""
        return False

    @property
    def decoder_start(self) -> int | None:
        """The id that every answer begins after, where an encoder reads the prompt; None for all other models."""
        return None

    @property
    def scores_classes(self) -> bool:
        """Whether these vectors are scores of classes."""
        return False

    @property
    def tells_texts_apart(self) -> bool:
        """Whether the tokens of the second text of a pair are of another type."""
        return False


@dataclass(frozen=True)
class DenseConfig(Config):
    """The keys of decoders whose layers are all alike."""

    n_head: int
    n_kv_head: int
    head_dim: int
    v_head_dim: int
    n_rot: int  # how many dimensions of a head are rotated
    ffn_dim: int
    eps: float
    IS_CAUSAL: ClassVar[bool] = True  # False: tokens attend both ways

    @classmethod
    def read(
        cls,
        keys: Keys,
        n_vocab: int,
        *,
        eps: str = "attention.layer_norm_rms_epsilon",
        n_head: int | None = None,
        n_kv_head: int | None = None,
        ffn_dim: int | None = None,
    ) -> DenseConfig:
        """``eps``: the key of what norms add to the variance.  No experts, and attention that is causal or is not.

        ``n_head``: the most that a layer has, where layers differ.  ``n_kv_head``, ``ffn_dim``: those of the layers
        that have any, where others have none (``by_layer``).
        """
        base = Config.read(keys, n_vocab)
        n_head = n_head or keys.same("attention.head_count", base.n_layer, low=1, high=MAX_HEADS)
        head_dim = keys.integer("attention.key_length", max(1, base.dim // n_head), low=1, high=MAX_HEAD_DIM)
        config = cls(
            **vars(base),
            n_head=n_head,
            n_kv_head=n_kv_head or keys.same("attention.head_count_kv", base.n_layer, n_head, low=1, high=MAX_HEADS),
            head_dim=head_dim,
            v_head_dim=keys.integer("attention.value_length", head_dim, low=1, high=MAX_HEAD_DIM),
            n_rot=keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim),
            ffn_dim=ffn_dim or keys.same("feed_forward_length", base.n_layer, 0, high=MAX_DIM),
            eps=keys.number(eps),
        )
        config.check()
        keys.only("attention.causal", cls.IS_CAUSAL)
        return config

    @property
    def widest(self) -> int:
        return max(self.ffn_dim, self.n_head * self.head_dim)

    def check(self) -> None:
        if self.n_head % self.n_kv_head:
            counts = f"{self.n_head} and {self.n_kv_head}"
            raise LoadError(f"[{self.arch}] head_count must be divisible by head_count_kv but they are {counts}")
        if self.head_dim % 2 or self.v_head_dim % 2:
            raise LoadError(f"[{self.arch}] the size of a head must be even but is {self.head_dim}, {self.v_head_dim}")
        if self.n_rot % 2:
            raise LoadError(f"[{self.arch}] rope.dimension_count must be even but is {self.n_rot}")
        if not 0 < self.eps < 1:
            raise LoadError(f"[{self.arch}] the epsilon of norms must be between 0 and 1 but is {self.eps}")

    def cache(self, windows: Sequence[int] | None = None) -> list[CacheSpec]:
        """All of the past in every layer, or only each layer's window (0: all)."""
        return [
            CacheSpec(n_kv_head=self.n_kv_head, head_dim=self.head_dim, v_head_dim=self.v_head_dim, window=window)
            for window in windows or [0] * self.n_layer
        ]


def by_layer(keys: Keys, name: str, *, high: int) -> tuple[list[bool], int]:
    """Of a number by layer that is 0 where a layer has none of it: which layers have it, and what they share."""
    numbers = keys.integers(name, keys.integer("block_count", low=1, high=MAX_LAYERS), high=high)
    values = set(numbers) - {0}
    if len(values) > 1:
        raise UnsupportedError(
            f"[{keys.arch}] '{keys.full(name)}' must be the same for all layers that have any but is not"
        )
    return [number > 0 for number in numbers], values.pop() if values else 1


@dataclass(frozen=True)
class Vectors:
    """What an encoder ends with instead of logits: ``rows ["rows", n]``, embeddings or scores of classes."""

    rows: Tensor


class Model(Protocol):
    """An architecture: declares its weights, then spells the wiring."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None: ...

    @property
    def config(self) -> Config:
        """The sizes, read from the file."""

    def cache(self) -> list[CacheSpec]:
        """What each layer keeps per token."""

    def __call__(self, step: Step) -> Tensor | Vectors:
        """Logits ``["rows", n_vocab]``, or an encoder's vectors."""


@runtime_checkable
class EncoderDecoder(Protocol):
    """What a model has beside ``Model`` when an encoder reads the prompt."""

    def encode(self, step: Step) -> Vectors:
        """Write the layers that keep a source's rows.  The encoder's vectors."""


Layer = Callable[[Tensor], Tensor]  # rows alone, such as a norm or an MLP
Mixer = Callable[[Tensor, Step], Tensor]  # rows with those before them, such as attention or a block


class Block:
    """Attention and MLP, each behind a norm and added to what went in."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.norm("ffn_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class SandwichBlock:
    """Attention and MLP, each between two norms."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps)
        self.attn_post = weights.norm("post_attention_norm", config.dim, config.eps)
        self.ffn_norm = weights.norm("ffn_norm", config.dim, config.eps)
        self.ffn_post = weights.norm("post_ffw_norm", config.dim, config.eps)
        self.attention, self.mlp = attention, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attn_post(self.attention(self.attn_norm(x), step))
        return x + self.ffn_post(self.mlp(self.ffn_norm(x)))


class PostNormBlock:
    """Attention and MLP, each before a norm, whose result is added to what went in."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attention, self.attn_post = attention, weights.norm("post_attention_norm", config.dim, config.eps)
        self.mlp, self.ffn_post = mlp, weights.norm("post_ffw_norm", config.dim, config.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attn_post(self.attention(x, step))
        return x + self.ffn_post(self.mlp(x))


class Decoder:
    """Embedding, blocks, a norm, a head, all of the past in every layer: what most decoders have in common.

    An architecture that differs overrides ``cache`` or ``__call__``.
    """

    predictor: Predictor | None = None

    def __init__(self, config: DenseConfig, weights: Weights, blocks: Sequence[Mixer]) -> None:
        self.config = config
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = blocks
        self.norm: Layer = weights.norm("output_norm", config.dim, config.eps)
        self.head = head(weights, config, self.embedding)

    def add_predictor(
        self,
        weights: Weights,
        make_block: Callable[[Weights], Mixer],
        cache: CacheSpec | None = None,
        *,
        is_normed: bool = True,
    ) -> None:
        """The layer behind the last one, where the file has one that predicts later tokens, and it is to be used.

        ``block`` makes its block of the layer's weights, as layer 0 of a cache of its own; ``cache``: what that keeps,
        None: all of the past.  ``is_normed``: see ``Predictor``.
        """
        config, block = self.config, weights.scope(f"blk.{self.config.n_layer}")
        if not (weights.predicts and block.has(f"{PREDICTOR}.weight")):
            return
        norms = [name for name in PREDICTOR_NORMS if block.has(f"{name}.weight")]
        self.predictor = Predictor(
            dim=config.dim,
            cache=cache or config.cache()[0],
            embedding=block.embedding("nextn.embed_tokens", config.n_vocab, config.dim)
            if block.has("nextn.embed_tokens.weight")
            else self.embedding,
            embedding_norm=block.norm("nextn.enorm", config.dim, config.eps),
            feature_norm=block.norm("nextn.hnorm", config.dim, config.eps),
            projection=block.linear(PREDICTOR, 2 * config.dim, config.dim),
            block=make_block(block),
            norm=block.norm(norms[0], config.dim, config.eps) if norms else self.norm,
            head=block.linear("nextn.shared_head_head", config.dim, config.n_vocab)
            if block.has("nextn.shared_head_head.weight")
            else self.head,
            is_normed=is_normed,
        )

    def cache(self) -> list[CacheSpec]:
        return self.config.cache()

    def logits(self, x: Tensor, step: Step) -> Tensor:
        """Of embedded tokens."""
        x = step.run_layers(self.blocks, x)
        if step.has_predictor and self.predictor is not None:
            step.show_features(self.norm(x) if self.predictor.is_normed else x)
        return self.head(self.norm(select_rows(x, step.logit_rows)))

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens), step)


def dense_then_experts(
    config: DenseConfig, experts: ExpertConfig, shared_dim: int, n_dense: int
) -> Callable[[int, Weights], Layer]:
    """What makes the MLP of layer i: a gated one in the first ``n_dense``, then experts, a shared one beside them."""

    def mlp(i: int, weights: Weights) -> Layer:
        return (
            GatedMLP(weights, config.dim, config.ffn_dim)
            if i < n_dense
            else experts_of(weights, config.dim, experts, shared_dim)
        )

    return mlp


def head(weights: Weights, config: Config, embedding: Embedding) -> Linear:
    """The output projection; where the file has none, the embedding's matrix."""
    return weights.linear("output", config.dim, config.n_vocab) if weights.has("output.weight") else embedding.as_head()


def layers_left_out(keys: Keys, weights: Weights, n_layer: int, *, n_used: int = 0) -> int:
    """How many of a file's last layers predict later tokens.

    ``n_used``: of those, the model takes the first ones (``Decoder.add_predictor``), where they are to be used; no
    others.
    """
    n = keys.integer("nextn_predict_layers", 0, high=n_layer - 1)
    first = n_layer - n
    used = n_used if n and weights.predicts and weights.has(f"blk.{first}.{PREDICTOR}.weight") else 0
    for i in range(first + used, n_layer):
        weights.ignore(f"blk.{i}.*", "it predicts later tokens")
    return n


def local_layers(keys: Keys, n_layer: int, period: int, *, last: bool = True) -> list[bool]:
    """Which layers have a window: all but every ``period``-th, or of another period, or as an array says.

    ``last``: whether the one without is the last of its period or the first.
    """
    if keys.is_array("attention.sliding_window_pattern"):
        return [bool(local) for local in keys.integers("attention.sliding_window_pattern", n_layer, high=1)]
    period = keys.integer("attention.sliding_window_pattern", period)
    return [period == 0 or (i + last) % period != 0 for i in range(n_layer)]


def trace(
    model: Model, n_ctx: int, taps: Iterable[int] = (), *, has_predictor: bool = False, fusion: Fusion | None = None
) -> Trace:
    """Record the forward pass, once, for contexts of at most ``n_ctx`` tokens.

    ``taps``: layers after which the hidden state can be read (``Executor.tap``).  UnsupportedError for those that the
    model does not have, or does not show.  ``has_predictor``: what a predictor reads can be read as well
    (``Executor.features``), where the model has one; ``fusion``: so can what that makes of hidden states, for a head.
    """
    tracer, wanted = Tracer(model.cache()), frozenset(taps)
    encoder = None
    if isinstance(model, EncoderDecoder):
        of_source = Tracer(model.cache())
        encoder = of_source.finish_vectors(model.encode(Step(of_source, n_ctx)).rows)
    kept = frozenset(layer - 1 for layer in fusion.layers) if fusion is not None else frozenset()
    step = Step(tracer, n_ctx, wanted, has_predictor, kept)
    output = model(step)
    if fusion is not None:
        step.show_features(fusion(_states_of(model, step, fusion)))
    if missing := wanted.difference(tracer.tapped_layers):
        config = model.config
        raise UnsupportedError(
            f"[taps] layers must be those of {config.arch} that show their hidden state, of {config.n_layer}, "
            f"but {min(missing)} is not"
        )
    return tracer.finish_vectors(output.rows) if isinstance(output, Vectors) else tracer.finish(output, encoder=encoder)


def _states_of(model: Model, step: Step, fusion: Fusion) -> list[Tensor]:
    dim, arch = model.config.dim, model.config.arch
    for layer in fusion.layers:
        state = step.states.get(layer - 1)
        if state is None or state.shape != ("tokens", dim):
            raise UnsupportedError(f"[draft] {arch} must show what goes into layer {layer} for this head but does not")
    return [step.states[layer - 1] for layer in fusion.layers]


def trace_predictor(predictor: Predictor | EagleHead, n_ctx: int) -> Trace:
    """The pass of a predictor or a head, which has one layer."""
    tracer = Tracer([predictor.cache])
    return tracer.finish(predictor(Step(tracer, n_ctx)))
