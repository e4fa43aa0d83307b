"""The encoder of T5 (Raffel et al. 2020): unscaled scores with a learned bias for each bucket of distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, u32
from ..errors import LoadError, UnsupportedError
from ..nn import MLP, CacheSpec, GatedMLP, Keys, Step, Tensor, Weight, Weights, select_rows
from .base import DenseConfig, Layer, Vectors
from .encoder_heads import Classes, head_of
from .encoding import TOKEN_HEAD, TOKEN_HEAD_KEYS, BothWaysConfig, below

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Table: TypeAlias = npt.NDArray[np.float32]

ARCHES = ("t5encoder",)
MAX_DISTANCE = 128  # all distances from here on share a bucket
MAX_BUCKETS = 4096


def buckets(distances: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Return the buckets of distances of 0 or more: half for single distances, half for logarithmic ranges."""
    import numpy as np

    n_exact = n // 2
    ratio = np.log(np.maximum(distances, 1).astype(np.float32) / n_exact) / math.log(MAX_DISTANCE / n_exact)
    far = n_exact + (ratio * (n - n_exact)).astype(np.int64)
    return np.where(distances < n_exact, distances, np.minimum(far, n - 1))


def before(table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return each head's biases for earlier tokens, ending with distance 0, from a table of buckets."""
    import numpy as np

    return np.ascontiguousarray(table[buckets(np.arange(MAX_DISTANCE, -1, -1), len(table))].T)


def both_ways(table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return each head's biases from the earliest to the latest token; the table's second half is for later tokens."""
    import numpy as np

    n = len(table) // 2
    away = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    columns = table[buckets(np.abs(away), n) + n * (away > 0)]
    return np.ascontiguousarray(columns.T)


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, bias: Weight) -> None:
        self.n_head, self.bias = config.n_head, bias
        self.q, self.k, self.v = (
            weights.linear(f"attn_{one}", config.dim, config.n_head * config.head_dim) for one in "qkv"
        )
        self.o = weights.linear("attn_o", config.n_head * config.head_dim, config.dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x).heads(self.n_head) for linear in (self.q, self.k, self.v))
        return self.o(step.attend_both_ways(q, k, v, scale=1.0, bias=self.bias))


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, bias: Weight, mlp: Layer) -> None:
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps)
        self.attention = Attention(config, weights, bias)
        self.ffn_norm, self.mlp = weights.norm("ffn_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


def n_buckets_of(keys: Keys, config: DenseConfig) -> int:
    """Return the number of buckets, and check that heads are like T5's."""
    keys.without_effect("attention.layer_norm_epsilon")
    if config.n_kv_head != config.n_head or config.v_head_dim != config.head_dim:
        raise LoadError(f"[{config.arch}] heads of q, k and v differ in number or size")
    n_buckets = keys.integer("attention.relative_buckets_count", low=4, high=MAX_BUCKETS)
    if n_buckets % 4:
        raise LoadError(f"[{config.arch}] relative_buckets_count {n_buckets} is not divisible by 4")
    return n_buckets


def mlp_of(config: DenseConfig, weights: Weights) -> Layer:
    """Return the MLP, which is gated since version 1.1."""
    if weights.has("ffn_gate.weight"):
        return GatedMLP(weights, config.dim, config.ffn_dim, "gelu_tanh")
    return MLP(weights, config.dim, config.ffn_dim, "relu")


def with_biases(
    config: DenseConfig, layers: Iterable[Weights], n_buckets: int, by_distance: Callable[[Table], Table]
) -> Iterator[tuple[Weights, Weight]]:
    """Iterate over the layers' weights and biases; layers without a table use the first layer's."""
    for i, block in enumerate(layers):
        if i == 0 or block.has("attn_rel_b.weight"):
            bias = block.computed(
                "attn_rel_b", by_distance(block.numbers("attn_rel_b.weight", (n_buckets, config.n_head)))
            )
        yield block, bias


def encoder_blocks(config: DenseConfig, weights: Weights, n_buckets: int) -> list[Block]:
    layers = [weights.scope(f"enc.blk.{i}") for i in range(config.n_layer)]
    return [
        Block(config, block, bias, mlp_of(config, block))
        for block, bias in with_biases(config, layers, n_buckets, both_ways)
    ]


class T5Encoder:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        read = BothWaysConfig.read(keys, n_vocab)
        self.config = config = replace(read, classes=Classes.read(keys, weights))
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = encoder_blocks(config, weights, n_buckets_of(keys, config))
        self.norm = weights.norm("enc.output_norm", config.dim, config.eps)
        self.head = head_of(keys, weights, config.dim, config.classes)

    def cache(self) -> Sequence[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.embedding(step.tokens)
        x = step.run_layers(self.blocks, x)
        return Vectors(self.head(self.norm(select_rows(x, step.logit_rows))))


MODEL = T5Encoder

# --- checkpoint ---


def activation_is_known(config: Fields, default: str = "relu") -> None:
    """Check that fields derived from ``feed_forward_proj`` agree with it, because transformers reads them."""
    kind = config.text("feed_forward_proj", default)
    if kind not in ("relu", "gated-gelu"):
        raise UnsupportedError(f"[convert] unsupported 'feed_forward_proj': '{kind}' (expected relu or gated-gelu)")
    is_gated = kind == "gated-gelu"
    if config.flag("is_gated_act", is_gated) != is_gated:
        raise UnsupportedError(f"[convert] 'is_gated_act' contradicts 'feed_forward_proj' '{kind}'")
    if config.text("dense_act_fn", "gelu_new" if is_gated else "relu") != ("gelu_new" if is_gated else "relu"):
        raise UnsupportedError(f"[convert] 'dense_act_fn' contradicts 'feed_forward_proj' '{kind}'")


def is_gated_unless_said(config: Fields) -> None:
    """Check the activation of mT5 and UMT5, which are gated by default."""
    activation_is_known(config, "gated-gelu")


def attention_tensors(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}_{one}": f"{theirs}.{one}" for one in "qkvo"}


def mlp_tensors(ours: str, theirs: str) -> dict[str, str]:
    inner = f"{theirs}.DenseReluDense"
    return {
        f"{ours}.ffn_norm": f"{theirs}.layer_norm",
        f"{ours}.ffn_up": f"{inner}.wi",
        f"{ours}.ffn_gate.weight": f"{inner}.wi_0.weight",
        f"{ours}.ffn_up.weight": f"{inner}.wi_1.weight",
        f"{ours}.ffn_down": f"{inner}.wo",
    }


_BLOCK = "encoder.block.{i}"
KEYS = {
    "context_length": u32("n_positions", default=512, low=1),
    "embedding_length": u32("d_model", default=512),
    "block_count": u32("num_layers", "num_hidden_layers", default=6),
    "feed_forward_length": u32("d_ff", default=2048),
    "attention.head_count": u32("num_heads", default=8, low=1),
    "attention.key_length": u32("d_kv", default=64),
    "attention.value_length": u32("d_kv", default=64),
    "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-6),
    "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-6),
    "attention.relative_buckets_count": u32("relative_attention_num_buckets", default=32),
}
TENSORS = {
    "token_embd": "shared",
    "enc.output_norm": "encoder.final_layer_norm",
    "enc.blk.{i}.attn_norm": f"{_BLOCK}.layer.0.layer_norm",
    **attention_tensors("enc.blk.{i}.attn", f"{_BLOCK}.layer.0.SelfAttention"),
    "enc.blk.{i}.attn_rel_b": f"{_BLOCK}.layer.0.SelfAttention.relative_attention_bias",
    **mlp_tensors("enc.blk.{i}", f"{_BLOCK}.layer.1"),
}
MULTILINGUAL_KEYS = {
    **KEYS,
    "block_count": u32("num_layers", "num_hidden_layers", default=8),
    "feed_forward_length": u32("d_ff", default=1024),
    "attention.head_count": u32("num_heads", default=6, low=1),
}
_CAUSAL = {"attention.causal": computed("bool", lambda config: False)}
_CHECKPOINT = Checkpoint(
    "t5encoder",
    {**KEYS, **_CAUSAL},
    TENSORS,
    fixed={
        "is_decoder": (False,),
        "is_encoder_decoder": (True, False),
        "relative_attention_max_distance": (MAX_DISTANCE,),
    },
    checks=(activation_is_known,),
    rope=None,
    tied=True,
    unused=(
        "decoder_start_token_id",
        "dropout_rate",
        "num_decoder_layers",
        "output_past",
        "classifier_dropout",
        "scale_decoder_outputs",
    ),
    ignored=("encoder.embed_tokens.weight",),  # duplicates "shared"
    base="",
)
_MULTILINGUAL = replace(_CHECKPOINT, keys={**MULTILINGUAL_KEYS, **_CAUSAL}, checks=(is_gated_unless_said,))


def _tokens(model: Checkpoint) -> Checkpoint:
    """Return the mapping of the encoder with a classifier of each token."""
    return replace(
        model,
        keys={**model.keys, **TOKEN_HEAD_KEYS},
        tensors={**below("transformer.", model.tensors), **TOKEN_HEAD},
        ignored=("transformer.encoder.embed_tokens.weight",),
    )


HF = {
    "T5ForTokenClassification": _tokens(_CHECKPOINT),
    "MT5ForTokenClassification": _tokens(_MULTILINGUAL),
    "UMT5ForTokenClassification": _tokens(_MULTILINGUAL),
    "T5EncoderModel": _CHECKPOINT,
    "MT5EncoderModel": _MULTILINGUAL,
    "UMT5EncoderModel": _MULTILINGUAL,
}
