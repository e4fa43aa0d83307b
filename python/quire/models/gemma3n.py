"""Gemma 3n, text (Google 2025): four streams by AltUp (Baykal et al. 2023), Laurel, sparse MLPs, shared K and V."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoint import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Checkpoint,
    Fields,
    Key,
    cap,
    local_layers,
    made,
    taken,
    u32,
    with_pictures,
)
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, Keys, RopeSpec, Step, Tensor, Weight, Weights, rope, rope_spec, select_rows, soft_cap
from .base import MAX_DIM, Config, DenseConfig, head
from .base import local_layers as locals_of
from .gemma3 import GELU_TANH, LOCAL_BASE, NORMS, rope_entries

if TYPE_CHECKING:
    from ..checkpoint import Array

ARCHES = ("gemma3n",)
PERIOD = 5
TINY = 1e-12  # for norms that only measure
N_SPARSE, SPARSITY = 10, 0.95  # of files that do not say how many of an MLP's gates are 0


@dataclass(frozen=True)
class Gemma3nConfig(DenseConfig):
    ffn_dims: list[int]
    is_local: list[bool]
    n_shared: int  # layers, the last ones, without K and V of their own
    n_extra: int  # width of each layer's own embedding
    n_stream: int
    active: int  # the stream that goes through the layers
    cutoffs: list[float]  # of gates, in standard deviations above their mean; -inf: none

    @classmethod
    def read_file(cls, m: Keys, n_vocab: int) -> Gemma3nConfig:
        n = m.integer("block_count", low=1)
        ffn_dims = m.integers("feed_forward_length", Config.read(m, n_vocab).n_layer, low=1, high=MAX_DIM)
        base = DenseConfig.read(m, n_vocab, ffn_dim=max(ffn_dims))
        n_stream = m.integer("altup.num_inputs", low=2, high=16)
        scale = "activation_sparsity_scale"
        usual = [NormalDist().inv_cdf(SPARSITY) if i < N_SPARSE else -math.inf for i in range(n)]
        return cls(
            **vars(base),
            ffn_dims=ffn_dims,
            is_local=locals_of(m, n, PERIOD),
            n_shared=m.integer("attention.shared_kv_layers", max(n - 20, 0), high=n - 1),
            n_extra=m.integer("embedding_length_per_layer_input", low=1, high=MAX_DIM),
            n_stream=n_stream,
            active=m.integer("altup.active_idx", 0, high=n_stream - 1),
            cutoffs=m.numbers(scale, n) if m.has(scale) else usual,
        )

    @property
    def widest(self) -> int:
        return max(self.ffn_dim, self.n_extra * self.n_layer, self.n_stream * self.dim)

    def source_of(self, layer: int) -> int:
        """The layer whose K and V a layer attends to: its own, or the last one of its kind that has them."""
        first_shared = self.n_layer - self.n_shared
        if layer < first_shared:
            return layer
        sources = [i for i in range(first_shared) if self.is_local[i] == self.is_local[layer]]
        if not sources:
            raise LoadError(f"[gemma3n] layer {layer} must share the K and V of a layer of its kind but there is none")
        return sources[-1]


class Mean:
    """Of each row, ``[tokens, 1]``."""

    def __init__(self, w: Weights, n: int) -> None:
        import numpy as np

        self.weight = w.made(f"mean of {n}", np.full((1, n), 1 / n, np.float32))

    def __call__(self, x: Tensor) -> Tensor:
        return graph.linear(x, self.weight)

    def size(self, x: Tensor) -> Tensor:
        """The root of the mean square."""
        return self(x * graph.rms_norm(x, None, TINY))


class Attention:
    """``source``: the layer whose K and V are attended to."""

    def __init__(self, c: Gemma3nConfig, w: Weights, layer: int, rotation: RopeSpec) -> None:
        self.c, self.layer, self.source, self.rotation = c, layer, c.source_of(layer), rotation
        self.q = w.linear("attn_q", c.dim, c.n_head * c.head_dim, bias=None)
        self.q_norm = w.norm("attn_q_norm", c.head_dim, c.eps)
        self.o = w.linear("attn_output", c.n_head * c.head_dim, c.dim, bias=None)
        if self.source != layer:
            for name in ("attn_k.*", "attn_v.*", "attn_k_norm.*"):
                w.ignore(name, "the layer attends to the K and V of another")
            return
        self.k = w.linear("attn_k", c.dim, c.n_kv_head * c.head_dim, bias=None)
        self.k_norm = w.norm("attn_k_norm", c.head_dim, c.eps)
        self.v = w.linear("attn_v", c.dim, c.n_kv_head * c.head_dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.c.n_head)), step.positions, self.rotation)
        if self.source != self.layer:
            return self.o(step.attend_again(self.source, q, scale=1.0))
        k = rope(self.k_norm(self.k(x).heads(self.c.n_kv_head)), step.positions, self.rotation)
        v = graph.rms_norm(self.v(x).heads(self.c.n_kv_head), None, self.c.eps)
        return self.o(step.attend(self.layer, q, k, v, scale=1.0))


class SparseMLP:
    """Gates count by how far they are above a cutoff: some standard deviations above the mean of their row."""

    def __init__(self, w: Weights, dim: int, ffn_dim: int, cutoff: float) -> None:
        self.gate, self.up = w.linear("ffn_gate", dim, ffn_dim), w.linear("ffn_up", dim, ffn_dim)
        self.down = w.linear("ffn_down", ffn_dim, dim)
        self.cutoff = cutoff
        self.mean = Mean(w, ffn_dim)

    def __call__(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        if self.cutoff > -math.inf:
            centred = graph.add_broadcast(gate, graph.negate(self.mean(gate)))
            above = graph.add_broadcast(centred, self.mean.size(centred) * -self.cutoff)
            gate = graph.activate(above, "relu")
        return self.down(graph.glu(gate, self.up(x), "gelu_tanh"))


class AltUp:
    """Streams ``[tokens, n, dim]``, of which one goes through a layer: the others are predicted, then corrected."""

    def __init__(self, c: Gemma3nConfig, w: Weights) -> None:
        self.n, self.active, self.dim = c.n_stream, c.active, c.dim
        self.router, self.norm = w.linear("altup_router", c.dim, self.n), w.norm("altup_router_norm", c.dim, c.eps)
        self.predictions = w.linear("altup_predict_coef", self.n, self.n**2)
        self.corrections = w.linear("altup_correct_coef", self.n, self.n)

    def one(self, streams: Tensor) -> Tensor:
        return graph.slice(streams, 1, self.active, self.active + 1).merge_heads()

    def modalities(self, x: Tensor) -> Tensor:
        return graph.tanh(self.router(self.norm(x) * (1 / self.dim)))

    def predict(self, streams: Tensor) -> Tensor:
        """Each stream and a sum of all of them, by a matrix of the token."""
        weights = graph.reshape(self.predictions(self.modalities(self.one(streams))), [self.n, self.n])
        predicted = streams
        for i in range(self.n):
            repeated = graph.repeat_heads(graph.slice(streams, 1, i, i + 1), self.n)
            predicted = predicted + graph.multiply_broadcast(repeated, graph.slice(weights, 0, i, i + 1))
        return predicted

    def correct(self, predicted: Tensor, output: Tensor) -> Tensor:
        """By what the layer made of the active stream otherwise than predicted."""
        news = output + graph.negate(self.one(predicted))
        repeated = graph.repeat_heads(news.heads(1), self.n)
        weights = self.corrections(self.modalities(output)).heads(self.n)
        return predicted + repeated + graph.multiply_broadcast(repeated, weights)


class Block:
    def __init__(self, c: Gemma3nConfig, w: Weights, layer: int, attention: Attention, others: Weight) -> None:
        self.attention, self.c, self.layer, self.others = attention, c, layer, others
        self.altup = AltUp(c, w)
        self.attn_norm, self.attn_post = w.norm("attn_norm", c.dim, c.eps), w.norm("post_attention_norm", c.dim, c.eps)
        self.ffn_norm, self.ffn_post = w.norm("ffn_norm", c.dim, c.eps), w.norm("post_ffw_norm", c.dim, c.eps)
        self.mlp = SparseMLP(w, c.dim, c.ffn_dims[layer], c.cutoffs[layer])
        rank = w.n_rows("laurel_l.weight")
        self.laurel_l, self.laurel_r = w.linear("laurel_l", c.dim, rank), w.linear("laurel_r", rank, c.dim)
        self.laurel_post = w.norm("laurel_post_norm", c.dim, c.eps)
        self.extra_scale = w.tensor("altup_correct_scale.weight", (c.dim,), vector=True)
        self.extra_gate, self.extra_up = w.linear("inp_gate", c.dim, c.n_extra), w.linear("proj", c.n_extra, c.dim)
        self.extra_post = w.norm("post_norm", c.dim, c.eps)

    def __call__(self, streams: Tensor, extra: Tensor, step: Step) -> Tensor:
        """``extra``: the token's embeddings for all layers."""
        predicted = self.altup.predict(streams)
        x = self.altup.one(predicted)
        normed = self.attn_norm(x)
        laurel = normed + self.laurel_post(self.laurel_r(self.laurel_l(normed)))
        x = (x + self.attn_post(self.attention(normed, step)) + laurel) * math.sqrt(0.5)
        x = x + self.ffn_post(self.mlp(self.ffn_norm(x)))
        corrected = self.altup.correct(predicted, x)
        gate = self.extra_gate(graph.multiply_weight(self.altup.one(corrected), self.extra_scale))
        mine = graph.slice(extra, 0, self.layer * self.c.n_extra, (self.layer + 1) * self.c.n_extra)
        added = self.extra_post(self.extra_up(graph.activate(gate, "gelu_tanh") * mine))
        repeated = graph.repeat_heads(added.heads(1), self.c.n_stream)
        return corrected + graph.multiply_weight(repeated, self.others)


class Gemma3n:
    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        import numpy as np

        self.config = c = Gemma3nConfig.read_file(m, n_vocab)
        self.window = m.integer("attention.sliding_window", low=1)
        self.cap, local_base = m.number("final_logit_softcapping", 30.0), m.number("rope.freq_base_swa", LOCAL_BASE)
        if local_base <= 0 or self.cap < 0:
            raise LoadError("[gemma3n] rope.freq_base_swa and final_logit_softcapping must not be negative")
        m.only("rope.dimension_count_swa", c.n_rot)
        m.only("attention.value_length", c.head_dim)
        everywhere = rope_spec(m, n_dims=c.n_rot, layout="half")
        nearby = rope_spec(m, n_dims=c.n_rot, layout="half", freq_base=local_base)
        self.embedding = w.embedding("token_embd", n_vocab, c.dim)
        self.extra_embedding = w.embedding("per_layer_token_embd", n_vocab, c.n_extra * c.n_layer)
        self.extra_proj = w.linear("per_layer_model_proj", c.dim, c.n_extra * c.n_layer)
        self.extra_norm = w.norm("per_layer_proj_norm", c.n_extra, c.eps)
        square = (c.n_stream - 1, c.dim, c.dim)
        self.split, self.joined = w.tensor("altup_proj.weight", square), w.tensor("altup_unembd_proj.weight", square)
        self.mean = Mean(w, c.dim)
        others = w.made("all streams but the first", np.array([[0], *[[1]] * (c.n_stream - 1)], np.float32))
        self.blocks = [
            Block(c, b, i, Attention(c, b, i, nearby if c.is_local[i] else everywhere), others)
            for i, b in enumerate(w.blocks(c.n_layer))
        ]
        self.norm = w.norm("output_norm", c.dim, c.eps)
        self.head = head(w, c, self.embedding)

    def cache(self) -> list[CacheSpec]:
        kept = self.config.cache([self.window if local else 0 for local in self.config.is_local])
        return [spec if self.config.source_of(i) == i else CacheSpec() for i, spec in enumerate(kept)]

    def extras(self, x: Tensor, step: Step) -> Tensor:
        """What every layer adds of the token and of its embedding ``x``: ``[tokens, n_layer * n_extra]``."""
        c = self.config
        projected = self.extra_norm((self.extra_proj(x) * c.dim**-0.5).heads(c.n_layer)).merge_heads()
        return (projected + self.extra_embedding(step.tokens) * math.sqrt(c.n_extra)) * math.sqrt(0.5)

    def as_large_as(self, x: Tensor, streams: Tensor) -> Tensor:
        """The streams, each scaled to the size of ``x``."""
        return graph.multiply_broadcast(graph.rms_norm(streams, None, TINY), self.mean.size(x).heads(1))

    def __call__(self, step: Step) -> Tensor:
        c, n = self.config, self.config.n_stream
        x = self.embedding(step.tokens) * c.dim**0.5
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


def _ffn_dims(config: Fields) -> list[int]:
    n_layer, sizes = config.integer("num_hidden_layers"), config.value("intermediate_size")
    if not isinstance(sizes, list):
        return [config.integer("intermediate_size", 16384)] * n_layer
    if len(sizes) != n_layer or not all(type(size) is int for size in sizes):
        raise UnsupportedError(f"[convert] 'intermediate_size' must be {n_layer} whole numbers, or one, but is not")
    return [int(str(size)) for size in sizes]


def _cutoffs(config: Fields) -> list[float]:
    n_layer = config.integer("num_hidden_layers")
    shares: Sequence[object] = config.items("activation_sparsity_pattern")
    if not shares:
        shares = [SPARSITY if i < N_SPARSE < n_layer else 0.0 for i in range(n_layer)]
    numbers = [float(share) for share in shares if isinstance(share, (int, float)) and 0 <= share < 1]
    if len(numbers) != n_layer or len(shares) != n_layer:
        raise UnsupportedError(f"[convert] 'activation_sparsity_pattern' must be {n_layer} numbers below 1 but is not")
    return [NormalDist().inv_cdf(share) if share > 0 else -math.inf for share in numbers]


def _padded(x: Array, config: Fields) -> Array:
    """Tokens that the table does not have are looked up as the first one."""
    import numpy as np

    missing = config.integer("vocab_size") - len(x)
    if missing < 0:
        raise UnsupportedError("[convert] 'vocab_size_per_layer_input' must be at most 'vocab_size' but is not")
    return np.concatenate([x, np.repeat(x[:1], missing, 0)]) if missing else x


_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "context_length": u32("max_position_embeddings", default=32768),
    "feed_forward_length": made("i32[]", _ffn_dims),
    "attention.head_count_kv": u32("num_key_value_heads", default=2),
    "attention.key_length": u32("head_dim", default=256),
    "attention.value_length": u32("head_dim", default=256),
    "attention.sliding_window": u32("sliding_window", default=512, low=1),
    "attention.sliding_window_pattern": made("bool[]", lambda config: local_layers(config, PERIOD)),
    "attention.shared_kv_layers": u32("num_kv_shared_layers", default=15),
    "altup.active_idx": u32("altup_active_idx", default=0),
    "altup.num_inputs": u32("altup_num_inputs", default=4),
    "embedding_length_per_layer_input": u32("hidden_size_per_layer_input", default=256),
    "activation_sparsity_scale": made("f32[]", _cutoffs),
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
        "per_layer_token_embd": taken("model.embed_tokens_per_layer", change=_padded),
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
    # AltUp's coefficients are clipped in training; what follows from the tensors.
    unused=("attention_bias", "hidden_act", "altup_coef_clip", "laurel_rank", "vocab_size_per_layer_input",
            "query_pre_attn_scalar", "attn_logit_softcapping"),
)  # fmt: skip
HF = {"Gemma3nForCausalLM": _TEXT, "Gemma3nForConditionalGeneration": with_pictures(_TEXT)}
