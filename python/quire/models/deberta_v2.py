"""DeBERTa v2 and v3 (He et al. 2021): BERT whose scores add products of each token with embeddings of distances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .._native.graph import Weight, activate, head_linear, multiply_broadcast, tanh
from .._native.graph import slice as slice_
from ..checkpoints.mapping import Array, Change, Checkpoint, Fields, Key, Source, computed, f32, tensor, u32
from ..errors import LoadError, UnsupportedError
from ..nn import MLP, Keys, Step, Tensor, Weights, embed
from .base import Mixer
from .encoding import (
    ENCODER_KEYS,
    HEAD_KEYS,
    TOKEN_HEAD,
    TOKEN_HEAD_KEYS,
    TRAINING_HEADS,
    Block,
    Embeddings,
    Encoder,
    EncoderConfig,
    below,
    projections,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ARCHES = ("deberta-v2",)
CONVOLUTION: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "gelu": partial(activate, activation="gelu")}


def buckets_of(reach: int, span: int, longest: int) -> list[int]:
    """Return the embedding's row for each distance, from that of the earliest row of ``reach`` to that of the latest.

    Args:
        reach: Tokens on either side.
        span: Distances with an embedding, on either side.
        longest: Distances beyond half of ``span`` share buckets, up to this one; 0: each has its own.
    """
    import numpy as np

    away = np.arange(reach, -reach - 1, -1)  # from a row to a token
    if longest:
        middle, far = span // 2, np.abs(away)
        ratio = np.maximum(far, middle).astype(np.float32) / np.float32(middle)
        share = np.log(ratio) / np.log(np.float32((longest - 1) / middle))
        beyond = np.ceil(share * np.float32(middle - 1)) + middle
        away = np.where(far <= middle, away, np.sign(away) * beyond).astype(np.int64)
    return [int(bucket) for bucket in np.clip(away + span, 0, 2 * span - 1)]


@dataclass(frozen=True)
class Distances:
    """The normed embeddings of distances ``[n, dim]``, and each distance's row."""

    rows: npt.NDArray[np.float32]
    buckets: list[int]


class Attention:
    def __init__(self, config: EncoderConfig, weights: Weights, distances: Distances) -> None:
        self.n_head, self.scale = config.n_head, (3 * config.head_dim) ** -0.5  # the sum of three products
        self.buckets = distances.buckets
        self.q, self.k, self.v = projections(weights, config.dim)
        names, linears = ("attn_k", "attn_q"), [self.k, self.q]
        if weights.has("attn_pos_k.weight"):  # distances have projections of their own
            names = ("attn_pos_k", "attn_pos_q")
            linears = [weights.linear(name, config.dim, config.dim, bias=None) for name in names]
        if any(linear.added or linear.scale != 1.0 for linear in linears):
            raise UnsupportedError(f"[deberta-v2] unsupported adapter or scale of {names[0]}, which distances use")
        self.by_row, self.by_token = (self._products(config, weights, name, distances) for name in names)
        self.o = weights.linear("attn_output", config.dim, config.dim, bias=None)

    def _products(self, config: EncoderConfig, weights: Weights, name: str, distances: Distances) -> Weight:
        """Return each head's matrix of products with the embeddings of distances, scaled: ``[n_head, n, head_dim]``."""
        import numpy as np

        rows = distances.rows @ weights.values(f"{name}.weight").T
        if weights.has(f"{name}.bias"):
            rows = rows + weights.values(f"{name}.bias")
        heads = (rows * np.float32(self.scale)).reshape(-1, config.n_head, config.head_dim).transpose(1, 0, 2)
        return weights.computed(f"{name}.distances", np.ascontiguousarray(heads, np.float32))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x).heads(self.n_head) for linear in (self.q, self.k, self.v))
        related = step.relate(head_linear(q, self.by_row), head_linear(k, self.by_token), self.buckets)
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale, related=related))


class Neighbours:
    """Shifts rows by one position, within a text: zeros come in at its ends.

    No operation does that for encoders.  Attention whose scores depend on the distance alone copies the row of a
    neighbour; at the end of a text, where no row has that distance, it returns a mean instead.  There, the mean of
    alternating signs over a row and its neighbour is the row's own sign, and else 0.
    """

    WIDTH = 16  # the smallest that kernels take
    DISTANCES = 5

    def __init__(self, config: EncoderConfig, weights: Weights) -> None:
        import numpy as np

        self.n_head = config.n_head
        signs = np.where(np.arange(config.n_ctx_train) % 2, -1.0, 1.0).astype(np.float32)
        self.signs = weights.computed("signs", np.repeat(signs[:, None], self.WIDTH, 1))
        self.zeros = weights.computed("zeros", np.zeros((config.n_ctx_train, self.n_head * self.WIDTH), np.float32))
        middle = self.DISTANCES // 2
        self.copies, self.means = {}, {}
        for side in (-1, 1):
            copy, mean = np.full((2, 1, self.DISTANCES), -1e9, np.float32)
            copy[:, middle + side] = mean[:, [middle, middle + side]] = 0.0
            self.copies[side] = weights.computed(f"copy{side}", np.tile(copy, (self.n_head, 1)))
            self.means[side] = weights.computed(f"mean{side}", mean)

    def __call__(self, x: Tensor, side: int, step: Step) -> Tensor:
        """Return the rows ``[tokens, n]`` of the previous (-1) or next (1) positions."""
        nothing, signs = embed(step.positions, self.zeros).heads(self.n_head), embed(step.positions, self.signs)
        alike = slice_(nothing, 1, 0, 1)
        copied = step.attend_both_ways(nothing, nothing, x.heads(self.n_head), scale=1.0, bias=self.copies[side])
        mean = step.attend_both_ways(alike, alike, signs.heads(1), scale=1.0, bias=self.means[side])
        is_end = slice_(mean * signs, 0, 0, 1)
        return copied + multiply_broadcast(copied, is_end) * -1.0


class Convolution:
    """A convolution over three neighbouring rows, beside the first layer."""

    def __init__(self, keys: Keys, config: EncoderConfig, weights: Weights) -> None:
        activation = keys.text("convolution.activation")
        if activation not in CONVOLUTION:
            raise UnsupportedError(f"[{keys.arch}] unsupported convolution.activation '{activation}'")
        self.activation = CONVOLUTION[activation]
        self.neighbours = Neighbours(config, weights)
        self.before, self.after = (weights.linear(f"conv_{at}", config.dim, config.dim) for at in ("before", "after"))
        self.here = weights.linear("conv_here", config.dim, config.dim, bias=True)
        self.norm = weights.layer_norm("conv_norm", config.dim, config.eps)

    def __call__(self, x: Tensor, layer: Tensor, step: Step) -> Tensor:
        """Return the output of the first layer, ``layer``, whose input is ``x``, with the convolution."""
        made = self.before(self.neighbours(x, -1, step)) + self.after(self.neighbours(x, 1, step)) + self.here(x)
        return self.norm(layer + self.activation(made))


class FirstBlock:
    def __init__(self, block: Mixer, convolution: Convolution) -> None:
        self.block, self.convolution = block, convolution

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.convolution(x, self.block(x, step), step)


class DebertaV2(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        distances = self._distances(keys, weights, config)
        blocks: list[Mixer] = [
            Block(config, block, Attention(config, block, distances), MLP(block, config.dim, config.ffn_dim, "gelu"))
            for block in weights.blocks(config.n_layer)
        ]
        if (first := weights.scope("blk.0")).has("conv_here.weight"):
            blocks[0] = FirstBlock(blocks[0], Convolution(keys, config, first))
        embeddings = Embeddings(config, weights, has_positions=weights.has("position_embd.weight"))
        super().__init__(config, keys, weights, embeddings, blocks)

    def _distances(self, keys: Keys, weights: Weights, config: EncoderConfig) -> Distances:
        import numpy as np

        longest = keys.integer("attention.relative_positions", low=2, high=1 << 16)
        n_buckets = keys.integer("attention.relative_buckets_count", 0, low=0, high=1 << 16)
        if n_buckets in (1, 2, 3) or longest - 1 <= n_buckets // 2:
            raise LoadError(f"[{keys.arch}] {n_buckets} buckets do not fit {longest} relative positions")
        span = n_buckets or longest
        weights.tensor("rel_embd.weight", (2 * span, config.dim))
        rows = weights.values("rel_embd.weight")
        if weights.has("rel_embd_norm.weight"):
            scale, shift = (weights.numbers(f"rel_embd_norm.{part}", (config.dim,)) for part in ("weight", "bias"))
            centred = rows - rows.mean(axis=1, keepdims=True)
            rows = centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + config.eps) * scale + shift
        # Those farther away are in the buckets at the ends.
        return Distances(rows, buckets_of(min(config.n_ctx_train - 1, longest), span, longest if n_buckets else 0))


MODEL = DebertaV2

# --- checkpoint ---


def _positive(config: Fields, name: str) -> int | None:
    """Return a whole number above 0; -1 means that there is none."""
    return None if config.value(name) in (None, -1, 0) else config.integer(name, low=1)


def _longest(config: Fields) -> int:
    return _positive(config, "max_relative_positions") or config.integer("max_position_embeddings", 512)


def _activation(config: Fields) -> str | None:
    """Return the activation of the convolution beside the first layer; None without one."""
    if not (size := config.integer("conv_kernel_size", 0)):
        return None
    if size != 3 or config.integer("conv_groups", 1) != 1:
        raise UnsupportedError(
            f"[convert] unsupported 'conv_kernel_size': {size} in {config.integer('conv_groups', 1)} groups "
            "(expected 3 in one)"
        )
    found = config.text("conv_act", "tanh")
    if found not in CONVOLUTION:
        raise UnsupportedError(f"[convert] unsupported 'conv_act': {found:.40} (expected tanh or gelu)")
    return found


def _tap(i: int) -> Change:
    """Take the matrix that a convolution multiplies one of its rows by."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        return np.ascontiguousarray(x[:, :, i])

    return change


def _kinds(config: Fields) -> None:
    """Refuse scores that are not the sum of both products."""
    found = config.value("pos_att_type")
    names = found.split("|") if isinstance(found, str) else found if isinstance(found, list) else []
    if {str(name).strip() for name in names} != {"c2p", "p2c"}:
        raise UnsupportedError(f"[convert] unsupported 'pos_att_type': {found!r:.60} (expected c2p and p2c)")
    if config.integer("embedding_size", config.integer("hidden_size", 1536)) != config.integer("hidden_size", 1536):
        raise UnsupportedError("[convert] unsupported 'embedding_size': expected hidden_size")
    if config.integer("pooler_hidden_size", config.integer("hidden_size", 1536)) != config.integer("hidden_size", 1536):
        raise UnsupportedError("[convert] unsupported 'pooler_hidden_size': expected hidden_size")
    norms = config.text("norm_rel_ebd", "none")
    if norms not in ("none", "layer_norm"):
        raise UnsupportedError(f"[convert] unsupported 'norm_rel_ebd': {norms:.40} (expected layer_norm or none)")


_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "embedding_length": u32("hidden_size", default=1536),
    "block_count": u32("num_hidden_layers", default=24),
    "feed_forward_length": u32("intermediate_size", default=6144),
    "attention.head_count": u32("num_attention_heads", default=24, low=1),
    "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-7),
    "attention.relative_positions": computed("u32", _longest),
    "convolution.activation": computed("string", _activation),
    "attention.relative_buckets_count": computed("u32", lambda config: _positive(config, "position_buckets") or 0),
}
_LAYER = "encoder.layer.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "rel_embd": "encoder.rel_embeddings",
    "rel_embd_norm": "encoder.LayerNorm",
    **{
        f"blk.{{i}}.attn_{one}": f"{_LAYER}.attention.self.{name}_proj"
        for one, name in (
            ("q", "query"), ("k", "key"), ("v", "value"), ("pos_k", "pos_key"), ("pos_q", "pos_query")
        )
    },
    **{
        f"blk.0.conv_{name}.weight": tensor("encoder.conv.conv.weight", change=_tap(i))
        for i, name in enumerate(("before", "here", "after"))
    },
    "blk.0.conv_here.bias": "encoder.conv.conv.bias",
    "blk.0.conv_norm": "encoder.conv.LayerNorm",
    "blk.{i}.attn_output": f"{_LAYER}.attention.output.dense",
    "blk.{i}.attn_output_norm": f"{_LAYER}.attention.output.LayerNorm",
    "blk.{i}.ffn_up": f"{_LAYER}.intermediate.dense",
    "blk.{i}.ffn_down": f"{_LAYER}.output.dense",
    "blk.{i}.layer_output_norm": f"{_LAYER}.output.LayerNorm",
}  # fmt: skip
_HEAD: dict[str, str | Source] = {"cls": "pooler.dense", "cls.output": "classifier"}
_TEXT_KEYS: dict[str, Key] = {**HEAD_KEYS, "classifier.activation": computed("string", lambda config: "gelu")}


def _of(head: dict[str, str | Source], keys: dict[str, Key]) -> Checkpoint:
    return Checkpoint(
        "deberta-v2",
        {**_KEYS, **keys},
        {**below("deberta.", _TENSORS), **head},
        fixed={
            "hidden_act": ("gelu",),
            "pooler_hidden_act": ("gelu",),
            "relative_attention": (True,),
        },
        checks=(_kinds,),
        rope=None,
        tied=True,
        unused=(
            "type_vocab_size", "position_biased_input", "share_att_key", "legacy", "pad_token_id", "cls_dropout",
            "pooler_*", "attention_head_size", "embedding_size",
        ),
        ignored=(*TRAINING_HEADS, "lm_predictions.*", "mask_predictions.*"),
        base="deberta.",
    )  # fmt: skip


HF = {
    "DebertaV2Model": _of({}, {}),
    "DebertaV2ForMaskedLM": _of({}, {}),
    "DebertaV2ForSequenceClassification": _of(_HEAD, _TEXT_KEYS),
    "DebertaV2ForTokenClassification": _of(TOKEN_HEAD, TOKEN_HEAD_KEYS),
}
