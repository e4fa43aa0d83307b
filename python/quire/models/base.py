"""Shared parts of architectures: sizes, blocks, the decoder skeleton, the protocol, tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from ..checkpoints.reading import fields
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

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..nn.steering import Steering

MAX_DIM = 1 << 20  # for each dimension, so that products of a few dimensions stay far below 2^63
MAX_HEADS, MAX_HEAD_DIM, MAX_LAYERS = 4096, fields.MAX_HEAD_DIM, fields.MAX_LAYERS

PREDICTOR = "nextn.eh_proj"  # a tensor that only layers that predict later tokens have
PREDICTOR_NORMS = ("nextn.shared_head_norm", "layer_output_norm")  # names of such a layer's output norm
RANK = 4  # the value of pooling_type for class scores
# Keys that do not change a model: tensors give the sizes, the engine reads the rest itself.
WITHOUT_EFFECT = (
    "vocab_size", "pooling_type", "classifier.output_labels", "classifier.problem_type", "classifier.per_token",
    "classifier.activation", "tensor_data_layout",
    # Keys of encoders that Ollama keeps in the file of the text model.
    "vision.*", "audio.*", "mm.*",
)  # fmt: skip
# Tensors of such an encoder.
INNER_ENCODER = ("v.*", "a.*", "mm.*")
# Transformers' values of problem_type: exclusive classes, independent classes, and regression.
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


@dataclass(frozen=True)
class Config:
    """The sizes that every model has.  An architecture reads its other keys itself or uses ``DenseConfig``."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    dim: int

    @classmethod
    def read(cls, keys: Keys, n_vocab: int) -> Config:
        """Read the sizes; a LoadError names a key that is missing, of another type or out of range."""
        return Config(
            arch=keys.arch,
            n_vocab=n_vocab,
            n_ctx_train=keys.integer("context_length", low=1),
            n_layer=keys.integer("block_count", low=1, high=MAX_LAYERS),
            dim=keys.integer("embedding_length", low=1, high=MAX_DIM),
        )

    @property
    def widest(self) -> int:
        """Return the width of a step's widest rows, for memory estimates."""
        return self.dim

    @property
    def is_encoder(self) -> bool:
        """Return whether the model outputs vectors instead of logits."""
        return False

    @property
    def decoder_start(self) -> int | None:
        """Return the token that starts every answer of an encoder-decoder model; None for other models."""
        return None

    @property
    def n_source(self) -> int:
        """Return the rows of sound that the encoder of an encoder-decoder model reads; 0: it reads text."""
        return 0

    @property
    def scores_classes(self) -> bool:
        """Return whether an encoder's vectors are class scores of a text."""
        return False

    @property
    def scores_tokens(self) -> bool:
        """Return whether an encoder's vectors are class scores of each token."""
        return False

    @property
    def tells_texts_apart(self) -> bool:
        """Return whether tokens of a pair's second text have another type."""
        return False


@dataclass(frozen=True)
class DenseConfig(Config):
    """The keys of decoders with uniform layers."""

    n_head: int
    n_kv_head: int
    head_dim: int
    v_head_dim: int
    n_rot: int  # rotated dimensions of a head
    ffn_dim: int
    eps: float
    IS_CAUSAL: ClassVar[bool] = True  # False: bidirectional attention

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
        rotates_all: bool = False,
    ) -> Self:
        """Read the keys.

        Args:
            keys: The file's keys.
            n_vocab: The number of tokens.
            eps: The key of the norms' epsilon.
            n_head: The largest number of heads of a layer, for models whose layers differ; None: read one for all.
            n_kv_head: The number in layers that have any (``by_layer``); None: read one for all layers.
            ffn_dim: The width in layers that have an MLP (``by_layer``); None: read one for all layers.
            rotates_all: RoPE applies to whole heads, whatever ``rope.dimension_count`` is.
        """
        base = Config.read(keys, n_vocab)
        n_head = n_head or keys.same("attention.head_count", base.n_layer, low=1, high=MAX_HEADS)
        head_dim = keys.integer("attention.key_length", max(1, base.dim // n_head), low=1, high=MAX_HEAD_DIM)
        n_rot = head_dim
        if rotates_all:
            keys.without_effect("rope.dimension_count")
        else:
            n_rot = keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
        config = cls(
            **vars(base),
            n_head=n_head,
            n_kv_head=n_kv_head or keys.same("attention.head_count_kv", base.n_layer, n_head, low=1, high=MAX_HEADS),
            head_dim=head_dim,
            v_head_dim=keys.integer("attention.value_length", head_dim, low=1, high=MAX_HEAD_DIM),
            n_rot=n_rot,
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
        """Raise LoadError for sizes that do not fit each other."""
        if self.n_head % self.n_kv_head:
            raise LoadError(
                f"[{self.arch}] head_count {self.n_head} is not divisible by head_count_kv {self.n_kv_head}"
            )
        if self.head_dim % 2 or self.v_head_dim % 2:
            raise LoadError(f"[{self.arch}] odd head size: key_length {self.head_dim}, value_length {self.v_head_dim}")
        if self.n_rot % 2:
            raise LoadError(f"[{self.arch}] odd rope.dimension_count {self.n_rot}")
        if not 0 < self.eps < 1:
            raise LoadError(f"[{self.arch}] norm epsilon {self.eps} is out of range: expected between 0 and 1")

    def cache(self, windows: Sequence[int] | None = None) -> list[CacheSpec]:
        """Return what each layer keeps: all tokens, or those of its window (0: all)."""
        return [
            CacheSpec(n_kv_head=self.n_kv_head, head_dim=self.head_dim, v_head_dim=self.v_head_dim, window=window)
            for window in windows or [0] * self.n_layer
        ]


def by_layer(keys: Keys, name: str, *, high: int) -> tuple[list[bool], int]:
    """Read a number for each layer, 0 or a value that all others share: which layers have it, and the value."""
    numbers = keys.integers(name, keys.integer("block_count", low=1, high=MAX_LAYERS), high=high)
    values = set(numbers) - {0}
    if len(values) > 1:
        found = ", ".join(str(value) for value in sorted(values)[:4])
        raise UnsupportedError(f"[{keys.arch}] '{keys.full(name)}' differs between layers ({found}), unsupported here")
    return [number > 0 for number in numbers], values.pop() if values else 1


@dataclass(frozen=True)
class Vectors:
    """An encoder's output: ``rows ["rows", n]``, embeddings or class scores."""

    rows: Tensor


class Model(Protocol):
    """An architecture: declares its weights, then defines the forward pass."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None: ...

    @property
    def config(self) -> Config:
        """Return the sizes, read from the file."""

    def cache(self) -> list[CacheSpec]:
        """Return what each layer keeps."""

    def __call__(self, step: Step) -> Tensor | Vectors:
        """Return logits ``["rows", n_vocab]``, or an encoder's vectors."""


@runtime_checkable
class EncoderDecoder(Protocol):
    """The additional protocol of models whose encoder reads the prompt."""

    def encode(self, step: Step) -> Vectors:
        """Write the source's rows to the cache; return the encoder's vectors."""


Layer = Callable[[Tensor], Tensor]  # treats rows separately, such as a norm or an MLP
Mixer = Callable[[Tensor, Step], Tensor]  # lets rows read other rows, such as attention or a block


class Block:
    """Attention and MLP, each with a norm before it and a residual connection."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.norm("ffn_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class SandwichBlock:
    """Attention and MLP, each with a norm before and after it and a residual connection."""

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
    """Attention and MLP, each with a norm after it and a residual connection."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, mlp: Layer) -> None:
        self.attention, self.attn_post = attention, weights.norm("post_attention_norm", config.dim, config.eps)
        self.mlp, self.ffn_post = mlp, weights.norm("post_ffw_norm", config.dim, config.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attn_post(self.attention(x, step))
        return x + self.ffn_post(self.mlp(x))


class Decoder:
    """The skeleton of most decoders: embedding, blocks, a norm, an output matrix, full attention in every layer.

    An architecture that differs overrides ``cache`` or ``__call__``.
    """

    predictor: Predictor | None = None

    def __init__(self, config: DenseConfig, weights: Weights, blocks: Sequence[Mixer]) -> None:
        self.config = config
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = blocks
        self.norm: Layer = weights.norm("output_norm", config.dim, config.eps)
        self.head = self.output(weights)

    def output(self, weights: Weights) -> Linear:
        """Return the output projection."""
        return head(weights, self.config, self.embedding)

    def add_predictor(
        self,
        weights: Weights,
        make_block: Callable[[Weights], Mixer],
        cache: CacheSpec | None = None,
        *,
        is_normed: bool = True,
    ) -> None:
        """Declare the layer after the last one, if the file has one that predicts later tokens and it is wanted.

        Args:
            weights: The model's weights.
            make_block: Makes the block from the layer's weights, as layer 0 of a cache of its own.
            cache: What this layer keeps; None: all tokens.
            is_normed: See ``Predictor``.
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
        """Return the logits of embedded tokens."""
        x = step.run_layers(self.blocks, x)
        if step.has_predictor and self.predictor is not None:
            step.show_features(self.norm(x) if self.predictor.is_normed else x)
        return self.head(self.norm(select_rows(x, step.logit_rows)))

    def __call__(self, step: Step) -> Tensor:
        return self.logits(step.with_media(self.embedding(step.tokens)), step)


def dense_then_experts(
    config: DenseConfig, experts: ExpertConfig, shared_dim: int, n_dense: int
) -> Callable[[int, Weights], Layer]:
    """Return a function that makes layer i's MLP: gated in the first ``n_dense`` layers, experts in the others."""

    def mlp(i: int, weights: Weights) -> Layer:
        return (
            GatedMLP(weights, config.dim, config.ffn_dim)
            if i < n_dense
            else experts_of(weights, config.dim, experts, shared_dim)
        )

    return mlp


def head(weights: Weights, config: Config, embedding: Embedding) -> Linear:
    """Return the output projection; if the file has none, the embedding matrix."""
    return weights.linear("output", config.dim, config.n_vocab) if weights.has("output.weight") else embedding.as_head()


def layers_left_out(keys: Keys, weights: Weights, n_layer: int, *, n_used: int = 0) -> int:
    """Return how many of a file's last layers predict later tokens.

    ``n_used``: how many of those the model can use (``Decoder.add_predictor``).  Tensors of unused ones are ignored.
    """
    n = keys.integer("nextn_predict_layers", 0, high=n_layer - 1)
    first = n_layer - n
    used = n_used if n and weights.predicts and weights.has(f"blk.{first}.{PREDICTOR}.weight") else 0
    for i in range(first + used, n_layer):
        weights.ignore(f"blk.{i}.*", "it predicts later tokens")
    return n


def local_layers(keys: Keys, n_layer: int, period: int, *, last: bool = True) -> list[bool]:
    """Return the layers with windows: those of the key's array, or all but every n-th.

    ``period``: n, unless the key holds another.  ``last``: the layer without a window is the last of its period, else
    the first.
    """
    if keys.is_array("attention.sliding_window_pattern"):
        return [bool(local) for local in keys.integers("attention.sliding_window_pattern", n_layer, high=1)]
    period = keys.integer("attention.sliding_window_pattern", period)
    return [period == 0 or (i + last) % period != 0 for i in range(n_layer)]


def trace(
    model: Model,
    n_ctx: int,
    taps: Iterable[int] = (),
    *,
    has_predictor: bool = False,
    fusion: Fusion | None = None,
    media_width: int = 0,
    steering: Steering | None = None,
) -> Trace:
    """Record the forward pass once.

    Args:
        model: The model.
        n_ctx: The longest context.
        taps: Layers after which the hidden state can be read (``Executor.tap``).
        has_predictor: Provide the features that the model's predictor reads (``Executor.features``).
        fusion: Provide the features that a head reads, combined from hidden states.
        steering: Control vectors of the model.

    Raises:
        UnsupportedError: The model has no such layers, or does not expose their hidden states.
    """
    tracer, wanted = Tracer(model.cache()), frozenset(taps)
    encoder = None
    if isinstance(model, EncoderDecoder):
        of_source = Tracer(model.cache())
        encoder = of_source.finish_vectors(model.encode(Step(of_source, n_ctx)).rows)
    kept = frozenset(layer - 1 for layer in fusion.layers) if fusion is not None else frozenset()
    step = Step(tracer, n_ctx, wanted, has_predictor, kept, media_width=media_width, steering=steering)
    output = model(step)
    if steering is not None and len(step.steered) < len(steering.layers):
        raise UnsupportedError(f"[models] control vectors are unsupported for {model.config.arch}")
    if media_width and not step.media_rows:
        raise UnsupportedError(f"[models] images and sounds are unsupported for {model.config.arch}")
    if fusion is not None:
        step.show_features(fusion(_states_of(model, step, fusion)))
    if missing := wanted.difference(tracer.tapped_layers):
        config = model.config
        raise UnsupportedError(
            f"[taps] {config.arch} does not expose the hidden state of layer {min(missing)} of {config.n_layer}"
        )
    return tracer.finish_vectors(output.rows) if isinstance(output, Vectors) else tracer.finish(output, encoder=encoder)


def _states_of(model: Model, step: Step, fusion: Fusion) -> list[Tensor]:
    dim, arch = model.config.dim, model.config.arch
    for layer in fusion.layers:
        state = step.states.get(layer - 1)
        if state is None or state.shape != ("tokens", dim):
            raise UnsupportedError(f"[draft] {arch} does not expose the input of layer {layer}, which this head reads")
    return [step.states[layer - 1] for layer in fusion.layers]


def trace_predictor(predictor: Predictor | EagleHead, n_ctx: int) -> Trace:
    """Record the forward pass of a predictor or a head, which has one layer."""
    tracer = Tracer([predictor.cache])
    return tracer.finish(predictor(Step(tracer, n_ctx)))
