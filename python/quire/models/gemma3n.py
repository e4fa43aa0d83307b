"""Gemma 3n, text (Google 2025): four streams by AltUp (Baykal et al. 2023), Laurel, sparse MLPs, shared K and V."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Fields,
    Key,
    cap,
    computed,
    local_layers,
    tensor,
    u32,
    with_pictures,
)
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, Keys, RopeSpec, Step, Tensor, Weight, Weights, rope, rope_spec, select_rows, soft_cap
from .base import MAX_DIM, Config, DenseConfig, head
from .base import local_layers as locals_of
from .gemma3 import GELU_TANH, LOCAL_BASE, NORMS, rope_entries

if TYPE_CHECKING:
    from ..checkpoints.mapping import Array

ARCHES = ("gemma3n",)
PERIOD = 5
TINY = 1e-12  # the epsilon of norms that only measure magnitudes
N_SPARSE, SPARSITY = 10, 0.95  # defaults: how many layers have sparse MLPs, and the share of gates that are 0


@dataclass(frozen=True)
class Gemma3nConfig(DenseConfig):
    ffn_dims: list[int]
    is_local: list[bool]
    n_shared: int  # the number of last layers that reuse the K and V of earlier ones
    n_extra: int  # the width of each layer's own embedding
    n_stream: int
    active: int  # the stream that goes through the layers
    cutoffs: list[float]  # for gates, in standard deviations above their mean; -inf: none

    @classmethod
    def read_file(cls, keys: Keys, n_vocab: int) -> Gemma3nConfig:
        n = keys.integer("block_count", low=1)
        ffn_dims = keys.integers("feed_forward_length", Config.read(keys, n_vocab).n_layer, low=1, high=MAX_DIM)
        base = DenseConfig.read(keys, n_vocab, ffn_dim=max(ffn_dims))
        n_stream = keys.integer("altup.num_inputs", low=2, high=16)
        scale = "activation_sparsity_scale"
        usual = [NormalDist().inv_cdf(SPARSITY) if i < N_SPARSE else -math.inf for i in range(n)]
        return cls(
            **vars(base),
            ffn_dims=ffn_dims,
            is_local=locals_of(keys, n, PERIOD),
            n_shared=keys.integer("attention.shared_kv_layers", max(n - 20, 0), high=n - 1),
            n_extra=keys.integer("embedding_length_per_layer_input", low=1, high=MAX_DIM),
            n_stream=n_stream,
            active=keys.integer("altup.active_idx", 0, high=n_stream - 1),
            cutoffs=keys.numbers(scale, n) if keys.has(scale) else usual,
        )

    @property
    def widest(self) -> int:
        return max(self.ffn_dim, self.n_extra * self.n_layer, self.n_stream * self.dim)

    def source_of(self, layer: int) -> int:
        """Return the layer whose K and V a layer attends to: itself, or the last one of its kind that has them."""
        first_shared = self.n_layer - self.n_shared
        if layer < first_shared:
            return layer
        sources = [i for i in range(first_shared) if self.is_local[i] == self.is_local[layer]]
        if not sources:
            raise LoadError(f"[gemma3n] no earlier layer of its kind has the K and V that layer {layer} shares")
        return sources[-1]


class Mean:
    """The mean of each row, ``[tokens, 1]``."""

    def __init__(self, weights: Weights, n: int) -> None:
        import numpy as np

        self.weight = weights.computed(f"mean of {n}", np.full((1, n), 1 / n, np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        return graph.linear(x, self.weight)

    def size(self, x: Tensor) -> Tensor:
        """Return the root mean square of each row."""
        return self(x * graph.rms_norm(x, None, TINY))


class Attention:
    """Attention to a layer's own K and V, or to those of an earlier layer (``source``)."""

    def __init__(self, config: Gemma3nConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.config, self.layer, self.source, self.rotation = config, layer, config.source_of(layer), rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.q_norm = weights.norm("attn_q_norm", config.head_dim, config.eps)
        self.o = weights.linear("attn_output", config.n_head * config.head_dim, config.dim, bias=None)
        if self.source != layer:
            for name in ("attn_k.*", "attn_v.*", "attn_k_norm.*"):
                weights.ignore(name, "the layer attends to the K and V of another")
            return
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.k_norm = weights.norm("attn_k_norm", config.head_dim, config.eps)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.head_dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.config.n_head)), step.positions, self.rotation)
        if self.source != self.layer:
            return self.o(step.attend_again(self.source, q, scale=1.0))
        k = rope(self.k_norm(self.k(x).heads(self.config.n_kv_head)), step.positions, self.rotation)
        v = graph.rms_norm(self.v(x).heads(self.config.n_kv_head), None, self.config.eps)
        return self.o(step.attend(self.layer, q, k, v, scale=1.0))


class SparseMLP:
    """A gated MLP whose gates are cut off some standard deviations above the mean of their row."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int, cutoff: float) -> None:
        self.gate, self.up = weights.linear("ffn_gate", dim, ffn_dim), weights.linear("ffn_up", dim, ffn_dim)
        self.down = weights.linear("ffn_down", ffn_dim, dim)
        self.cutoff = cutoff
        self.mean = Mean(weights, ffn_dim)

    def __call__(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        if self.cutoff > -math.inf:
            centred = graph.add_broadcast(gate, graph.negate(self.mean(gate)))
            above = graph.add_broadcast(centred, self.mean.size(centred) * -self.cutoff)
            gate = graph.activate(above, "relu")
        return self.down(graph.glu(gate, self.up(x), "gelu_tanh"))


class AltUp:
    """Streams ``[tokens, n, dim]``: one goes through a layer, the others are predicted and then corrected."""

    def __init__(self, config: Gemma3nConfig, weights: Weights) -> None:
        self.n, self.active, self.dim = config.n_stream, config.active, config.dim
        self.router = weights.linear("altup_router", config.dim, self.n)
        self.norm = weights.norm("altup_router_norm", config.dim, config.eps)
        self.predictions = weights.linear("altup_predict_coef", self.n, self.n**2)
        self.corrections = weights.linear("altup_correct_coef", self.n, self.n)

    def one(self, streams: Tensor) -> Tensor:
        return graph.slice(streams, 1, self.active, self.active + 1).merge_heads()

    def modalities(self, x: Tensor) -> Tensor:
        return graph.tanh(self.router(self.norm(x) * (1 / self.dim)))

    def predict(self, streams: Tensor) -> Tensor:
        """Add to each stream a mix of all streams, by a matrix computed from the token."""
        weights = graph.reshape(self.predictions(self.modalities(self.one(streams))), [self.n, self.n])
        predicted = streams
        for i in range(self.n):
            repeated = graph.repeat_heads(graph.slice(streams, 1, i, i + 1), self.n)
            predicted = predicted + graph.multiply_broadcast(repeated, graph.slice(weights, 0, i, i + 1))
        return predicted

    def correct(self, predicted: Tensor, output: Tensor) -> Tensor:
        """Correct all streams by the difference between the layer's output and the prediction of the active stream."""
        news = output + graph.negate(self.one(predicted))
        repeated = graph.repeat_heads(news.heads(1), self.n)
        weights = self.corrections(self.modalities(output)).heads(self.n)
        return predicted + repeated + graph.multiply_broadcast(repeated, weights)


class Block:
    def __init__(
        self, config: Gemma3nConfig, weights: Weights, layer: int, attention: Attention, others: Weight
    ) -> None:
        self.attention, self.config, self.layer, self.others = attention, config, layer, others
        self.altup = AltUp(config, weights)
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps)
        self.attn_post = weights.norm("post_attention_norm", config.dim, config.eps)
        self.ffn_norm = weights.norm("ffn_norm", config.dim, config.eps)
        self.ffn_post = weights.norm("post_ffw_norm", config.dim, config.eps)
        self.mlp = SparseMLP(weights, config.dim, config.ffn_dims[layer], config.cutoffs[layer])
        rank = weights.n_rows("laurel_l.weight")
        self.laurel_l = weights.linear("laurel_l", config.dim, rank)
        self.laurel_r = weights.linear("laurel_r", rank, config.dim)
        self.laurel_post = weights.norm("laurel_post_norm", config.dim, config.eps)
        self.extra_scale = weights.tensor("altup_correct_scale.weight", (config.dim,), vector=True)
        self.extra_gate = weights.linear("inp_gate", config.dim, config.n_extra)
        self.extra_up = weights.linear("proj", config.n_extra, config.dim)
        self.extra_post = weights.norm("post_norm", config.dim, config.eps)

    def __call__(self, streams: Tensor, extra: Tensor, step: Step) -> Tensor:
        """Run the layer; ``extra`` holds the tokens' embeddings for all layers."""
        predicted = self.altup.predict(streams)
        x = self.altup.one(predicted)
        normed = self.attn_norm(x)
        laurel = normed + self.laurel_post(self.laurel_r(self.laurel_l(normed)))
        x = (x + self.attn_post(self.attention(normed, step)) + laurel) * math.sqrt(0.5)
        x = x + self.ffn_post(self.mlp(self.ffn_norm(x)))
        corrected = self.altup.correct(predicted, x)
        gate = self.extra_gate(graph.multiply_weight(self.altup.one(corrected), self.extra_scale))
        mine = graph.slice(extra, 0, self.layer * self.config.n_extra, (self.layer + 1) * self.config.n_extra)
        added = self.extra_post(self.extra_up(graph.activate(gate, "gelu_tanh") * mine))
        repeated = graph.repeat_heads(added.heads(1), self.config.n_stream)
        return corrected + graph.multiply_weight(repeated, self.others)


class Gemma3n:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        import numpy as np

        self.config = config = Gemma3nConfig.read_file(keys, n_vocab)
        self.window = keys.integer("attention.sliding_window", low=1)
        self.cap = keys.number("final_logit_softcapping", 30.0)
        local_base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        if local_base <= 0 or self.cap < 0:
            raise LoadError(
                f"[gemma3n] rope.freq_base_swa {local_base} or final_logit_softcapping {self.cap} is out of range"
            )
        keys.only("rope.dimension_count_swa", config.n_rot)
        keys.only("attention.value_length", config.head_dim)
        everywhere = rope_spec(keys, n_dims=config.n_rot, layout="half")
        nearby = rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=local_base)
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        self.extra_embedding = weights.embedding("per_layer_token_embd", n_vocab, config.n_extra * config.n_layer)
        self.extra_proj = weights.linear("per_layer_model_proj", config.dim, config.n_extra * config.n_layer)
        self.extra_norm = weights.norm("per_layer_proj_norm", config.n_extra, config.eps)
        square = (config.n_stream - 1, config.dim, config.dim)
        self.split = weights.tensor("altup_proj.weight", square)
        self.joined = weights.tensor("altup_unembd_proj.weight", square)
        self.mean = Mean(weights, config.dim)
        others = weights.computed(
            "all streams but the first", np.array([[0], *[[1]] * (config.n_stream - 1)], np.float32)
        )
        self.blocks = [
            Block(config, block, i, Attention(config, block, i, nearby if config.is_local[i] else everywhere), others)
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        self.norm = weights.norm("output_norm", config.dim, config.eps)
        self.head = head(weights, config, self.embedding)

    def cache(self) -> list[CacheSpec]:
        kept = self.config.cache([self.window if local else 0 for local in self.config.is_local])
        return [spec if self.config.source_of(i) == i else CacheSpec() for i, spec in enumerate(kept)]

    def extras(self, x: Tensor, step: Step) -> Tensor:
        """Return the per-layer inputs from the tokens and their embeddings ``x``: ``[tokens, n_layer * n_extra]``."""
        config = self.config
        projected = self.extra_norm((self.extra_proj(x) * config.dim**-0.5).heads(config.n_layer)).merge_heads()
        return (projected + self.extra_embedding(step.tokens) * math.sqrt(config.n_extra)) * math.sqrt(0.5)

    def as_large_as(self, x: Tensor, streams: Tensor) -> Tensor:
        """Scale each stream to the magnitude of ``x``."""
        return graph.multiply_broadcast(graph.rms_norm(streams, None, TINY), self.mean.size(x).heads(1))

    def __call__(self, step: Step) -> Tensor:
        config, n = self.config, self.config.n_stream
        x = self.embedding(step.tokens) * config.dim**0.5
        extra = self.extras(x, step)
        others = graph.head_linear(graph.repeat_heads(x.heads(1), n - 1), self.split)
        streams = graph.concat(x.heads(1), self.as_large_as(x, others), 1)
        for block in self.blocks:
            streams = block(streams, extra, step)
        streams = select_rows(streams.merge_heads(), step.logit_rows).heads(n)
        x = graph.slice(streams, 1, 0, 1).merge_heads()
        others = self.as_large_as(x, graph.head_linear(graph.slice(streams, 1, 1, n), self.joined))
        for i in range(n - 1):
            x = x + graph.slice(others, 1, i, i + 1).merge_heads()
        logits = self.head(self.norm(x * (1 / n)))
        return soft_cap(logits, self.cap) if self.cap else logits


MODEL = Gemma3n

# --- checkpoint ---


def _ffn_dims(config: Fields) -> list[int]:
    n_layer, sizes = config.integer("num_hidden_layers"), config.value("intermediate_size")
    if not isinstance(sizes, list):
        return [config.integer("intermediate_size", 16384)] * n_layer
    if len(sizes) != n_layer or not all(type(size) is int for size in sizes):
        raise UnsupportedError(f"[convert] invalid 'intermediate_size': expected an integer or a list of {n_layer}")
    return [int(str(size)) for size in sizes]


def _cutoffs(config: Fields) -> list[float]:
    n_layer = config.integer("num_hidden_layers")
    shares: Sequence[object] = config.items("activation_sparsity_pattern")
    if not shares:
        shares = [SPARSITY if i < N_SPARSE < n_layer else 0.0 for i in range(n_layer)]
    numbers = [float(share) for share in shares if isinstance(share, (int, float)) and 0 <= share < 1]
    if len(numbers) != n_layer or len(shares) != n_layer:
        raise UnsupportedError(f"[convert] invalid 'activation_sparsity_pattern': expected {n_layer} numbers below 1")
    return [NormalDist().inv_cdf(share) if share > 0 else -math.inf for share in numbers]


def _padded(x: Array, config: Fields) -> Array:
    """Pad the table with its first row, for tokens that it lacks."""
    import numpy as np

    missing = config.integer("vocab_size") - len(x)
    if missing < 0:
        raise UnsupportedError(
            f"[convert] unsupported 'vocab_size_per_layer_input': {len(x)} is larger than 'vocab_size'"
        )
    return np.concatenate([x, np.repeat(x[:1], missing, 0)]) if missing else x


_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "context_length": u32("max_position_embeddings", default=32768),
    "feed_forward_length": computed("i32[]", _ffn_dims),
    "attention.head_count_kv": u32("num_key_value_heads", default=2),
    "attention.key_length": u32("head_dim", default=256),
    "attention.value_length": u32("head_dim", default=256),
    "attention.sliding_window": u32("sliding_window", default=512, low=1),
    "attention.sliding_window_pattern": computed("bool[]", lambda config: local_layers(config, PERIOD)),
    "attention.shared_kv_layers": u32("num_kv_shared_layers", default=15),
    "altup.active_idx": u32("altup_active_idx", default=0),
    "altup.num_inputs": u32("altup_num_inputs", default=4),
    "embedding_length_per_layer_input": u32("hidden_size_per_layer_input", default=256),
    "activation_sparsity_scale": computed("f32[]", _cutoffs),
    "final_logit_softcapping": cap("final_logit_softcapping", 30.0),
}
_LAYER = "model.layers.{i}"
_ALTUP = f"{_LAYER}.altup"
_TEXT = Checkpoint(
    "gemma3n",
    _KEYS,
    {
        **DECODER_TENSORS,
        **NORMS,
        "per_layer_token_embd": tensor("model.embed_tokens_per_layer", change=_padded),
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
        "altup_proj": "model.altup_projections.{e}",
        "altup_unembd_proj": "model.altup_unembed_projections.{e}",
        "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
        "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
        "blk.{i}.altup_router": f"{_ALTUP}.modality_router",
        "blk.{i}.altup_router_norm": f"{_ALTUP}.router_norm",
        "blk.{i}.altup_predict_coef": f"{_ALTUP}.prediction_coefs",
        "blk.{i}.altup_correct_coef": f"{_ALTUP}.correction_coefs",
        "blk.{i}.altup_correct_scale.weight": f"{_ALTUP}.correct_output_scale",
        "blk.{i}.laurel_l": f"{_LAYER}.laurel.linear_left",
        "blk.{i}.laurel_r": f"{_LAYER}.laurel.linear_right",
        "blk.{i}.laurel_post_norm": f"{_LAYER}.laurel.post_laurel_norm",
        "blk.{i}.inp_gate": f"{_LAYER}.per_layer_input_gate",
        "blk.{i}.proj": f"{_LAYER}.per_layer_projection",
        "blk.{i}.post_norm": f"{_LAYER}.post_per_layer_input_norm",
    },
    fixed={"hidden_activation": (*GELU_TANH, None), "altup_correct_scale": (True, None)},
    rope=rope_entries,
    tied=True,
    # Clipping applies in training only; the rank follows from the tensors.
    unused=("attention_bias", "hidden_act", "altup_coef_clip", "laurel_rank", "vocab_size_per_layer_input",
            "query_pre_attn_scalar", "attn_logit_softcapping"),
)  # fmt: skip
HF = {"Gemma3nForCausalLM": _TEXT, "Gemma3nForConditionalGeneration": with_pictures(_TEXT)}
