"""Sounds of Gemma 4 (Google 2026): a conformer (Zhang et al. 2023), each of whose states attends to the last 12.

Attention and convolutions over time see few rows, so they are computed in NumPy, between products of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native.graph import concat, multiply_broadcast, sigmoid, slice
from ...checkpoints.mapping import Fields, Source, computed, tensor, u32
from ...checkpoints.mapping.changes import Array
from ...errors import LoadError, RequestError, UnsupportedError
from ...media import Layout, View
from ...media.audio.gemma4 import Gemma4Features
from ...media.pixels import Floats
from ...nn import Keys, Linear, Step, Tensor, Weights, activate, unit_norm
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint
from .gemma4 import ClippedLinear, clipped_linears, text_width
from .qwen3a import squares_under

LONGEST = 480_000  # samples that are encoded together: 30 seconds
CAP = 50.0  # limit of the scores
POSITIONS = 13  # that a state has a relative key for: as many as the last ones and itself
# Frames for which a stage has room for a row.  The rows of a sound, one for every 4 frames, are computed in pieces.
FRAMES_PER_ROW = 16


class FeedForward:
    """Half of the result is added to the input."""

    def __init__(self, weights: Weights, end: str, dim: int, eps: float) -> None:
        self.norm, self.post_norm = (weights.norm(f"ffn_{name}{end}", dim, eps) for name in ("norm", "post_norm"))
        hidden = weights.n_rows(f"ffn_up{end}.weight")
        self.up = ClippedLinear(weights, f"ffn_up{end}", dim, hidden)
        self.down = ClippedLinear(weights, f"ffn_down{end}", hidden, dim)

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.post_norm(self.down(activate(self.up(self.norm(x)), "silu"))) * 0.5


class Layer:
    """A feed-forward block, attention, a convolution over time and a second feed-forward block."""

    def __init__(self, weights: Weights, dim: int, n_head: int, n_seen: int, eps: float) -> None:
        self.dim, self.n_head, self.head_dim, self.n_seen = dim, n_head, dim // n_head, n_seen
        self.first, self.second = (FeedForward(weights, end, dim, eps) for end in ("", "_1"))
        names = ("attn_pre_norm", "attn_post_norm", "conv_norm", "norm_conv", "ln2")
        self.attn_norm, self.attn_post, self.conv_norm, self.conv_post, self.norm = (
            weights.norm(name, dim, eps) for name in names
        )
        self.q, self.k, self.v, self.o = (
            ClippedLinear(weights, f"attn_{name}", dim, dim) for name in ("q", "k", "v", "out")
        )
        self.widen, self.end = (
            ClippedLinear(weights, name, dim, n) for name, n in (("conv_pw1", 2 * dim), ("conv_pw2", dim))
        )
        # Conversion has applied softplus.
        factors = weights.numbers("per_dim_scale.weight", (self.head_dim,))
        self.q_factors = factors * np.float32(self.head_dim**-0.5 / math.log(2))
        self.k_factor = np.float32(math.log(1 + math.e) / math.log(2))
        self.relative = self._relative(weights.numbers("attn_k_rel.weight", (dim, dim)))
        self.kernel = weights.numbers("conv_dw.weight", (dim, weights.n_columns("conv_dw.weight")))

    def _relative(self, projection: Floats) -> Floats:
        """Return the relative keys ``[distance, n_head, head_dim]``."""
        half = self.dim // 2
        steps = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / max(half - 1, 1)))
        angles = np.arange(POSITIONS, dtype=np.float32)[:, None] * steps
        rows = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        keys: Floats = (rows @ projection.T).reshape(POSITIONS, self.n_head, self.head_dim)
        return keys

    def before_attention(self, x: Tensor) -> Tensor:
        """Return the states, queries, keys and values, side by side."""
        x = self.first(x)
        y = self.attn_norm(x)
        for part in (self.q, self.k, self.v):
            x = concat(x, part(y), 0)
        return x

    def attended(self, q: Floats, k: Floats, v: Floats) -> Floats:
        """Attend to the states of ``n_seen`` distances, the first of which is 0."""
        q, k, v = (rows.reshape(len(rows), self.n_head, self.head_dim) for rows in (q, k, v))
        q, k = q * self.q_factors, k * self.k_factor
        scores = np.full((self.n_seen, len(q), self.n_head), -np.inf, np.float32)
        for far in range(min(self.n_seen, len(q))):
            keys = k[: len(k) - far] + self.relative[far]
            scores[far, far:] = np.tanh(np.einsum("thd,thd->th", q[far:], keys) / np.float32(CAP)) * np.float32(CAP)
        scores = np.exp(scores - scores.max(axis=0))
        scores /= scores.sum(axis=0)
        found = np.zeros_like(v)
        for far in range(min(self.n_seen, len(q))):
            found[far:] += scores[far, far:, :, None] * v[: len(v) - far]
        return found.reshape(len(found), self.dim)

    def between(self, inputs: Tensor) -> Tensor:
        """Return the states after attention, and the input of the convolution over time, side by side."""
        x, y = (slice(inputs, 0, i * self.dim, (i + 1) * self.dim) for i in range(2))
        x = x + self.attn_post(self.o(y))
        wide = self.widen(self.conv_norm(x))
        value, gate = (slice(wide, 0, i * self.dim, (i + 1) * self.dim) for i in range(2))
        return concat(x, multiply_broadcast(value, sigmoid(gate)), 0)

    def convolved(self, rows: Floats) -> Floats:
        """Convolve each column over time: a row sees itself and those before it."""
        taps = self.kernel.shape[1]
        padded = np.pad(rows, ((taps - 1, 0), (0, 0)))
        found = np.zeros_like(rows)
        for i in range(taps):
            found += padded[i : i + len(rows)] * self.kernel[:, i]
        return found

    def after_convolution(self, inputs: Tensor) -> Tensor:
        x, y = (slice(inputs, 0, i * self.dim, (i + 1) * self.dim) for i in range(2))
        return self.norm(self.second(x + self.end(activate(self.conv_post(y), "silu"))))


class Gemma4Audio(MediaModel):
    kind = "audio"
    pad = "<|audio|>"
    template_text = "<|audio|>"
    processor: Gemma4Features
    n_seen = POSITIONS - 1

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"audio.{name}", low=1, high=1 << 16) for name in SIZES}
        dim, self.n_out, self.patch_dim = read["embedding_length"], read["projection_dim"], read["num_mel_bins"]
        n_head, self.eps = read["attention.head_count"], keys.number("audio.attention.layer_norm_epsilon")
        keys.without_effect("audio.feed_forward_length")
        if dim % (2 * n_head) or self.patch_dim > 256:
            raise LoadError(f"[clip] unsupported sizes: {dim} numbers, {n_head} heads, {self.patch_dim} mel bins")
        self.dim, self.processor = dim, Gemma4Features(self.patch_dim)

        audio = weights.scope("a")
        self.channels = [1, *(audio.n_rows(f"conv1d.{i}.weight") for i in range(2))]
        self.convolutions = [self._convolution(audio, i) for i in range(2)]
        self.norms = [
            audio.layer_norm(f"conv1d.{i}.norm", self.channels[i + 1], self.eps, bias=False) for i in range(2)
        ]
        self.joined = audio.linear("input_projection", -(-self.patch_dim // 4) * self.channels[2], dim)
        self.layers = [Layer(block, dim, n_head, self.n_seen, self.eps) for block in audio.blocks(read["block_count"])]
        n_last = audio.n_rows("pre_encode.out.weight")
        self.last = audio.linear("pre_encode.out", dim, n_last, bias=True)
        self.projection = weights.linear("mm.a.input_projection", n_last, self.n_out)
        self.stages = self._stages()

    def _convolution(self, weights: Weights, i: int) -> Linear:
        n_in, n_out = self.channels[i : i + 2]
        kernel = weights.dequantized(f"conv1d.{i}.weight", (n_out, n_in, 3, 3)).astype(np.float32)
        rows = kernel.transpose(0, 2, 3, 1).reshape(n_out, 9 * n_in)
        return Linear(weights.computed(f"conv1d.{i}.rows", rows))

    def _stages(self) -> dict[str, Stage]:
        def stage(compute: Callable[[Tensor], Tensor], n_in: int) -> Stage:
            return Stage(lambda step: compute(step.features(n_in)), patches_per_row=FRAMES_PER_ROW)

        found = {f"convolution {i}": Stage(partial(self._convolve, i=i)) for i in range(2)}
        found["begin"] = stage(self._begin, -(-self.patch_dim // 4) * self.channels[2])
        for i, layer in enumerate(self.layers):
            found[f"between {i}"] = stage(layer.between, 2 * self.dim)
            found[f"after {i}"] = stage(partial(self._end_layer, i=i), 2 * self.dim)
        found["projector"] = stage(self._project, self.dim)
        return found

    def _convolve(self, step: Step, i: int) -> Tensor:
        return activate(self.norms[i](self.convolutions[i](step.features(9 * self.channels[i]))), "relu")

    def _begin(self, x: Tensor) -> Tensor:
        return self.layers[0].before_attention(self.joined(x))

    def _end_layer(self, x: Tensor, i: int) -> Tensor:
        """Return a layer's result, or what the next layer computes before its attention."""
        x = self.layers[i].after_convolution(x)
        return self.layers[i + 1].before_attention(x) if i + 1 < len(self.layers) else x

    def _project(self, x: Tensor) -> Tensor:
        return self.projection(unit_norm(self.last(x), self.eps))

    def _windows(self, n_samples: int) -> list[int]:
        """Return the real frames of each window."""
        samples = [min(n_samples - begin, LONGEST) for begin in range(0, n_samples, LONGEST)]
        frames = [self.processor.n_real(n) for n in samples]
        return [n for n in frames if n > 0]

    def layout(self, data: npt.NDArray[Any]) -> Layout:
        windows = self._windows(len(data))
        if not windows:
            raise RequestError(f"the audio has {len(data)} samples: it is too short for the model")
        return Layout(tuple((n, 1) for n in windows), 0, 0, tuple(-(-n // 4) for n in windows))

    def views(self, data: npt.NDArray[Any]) -> list[View]:
        samples = data.astype(np.float32, copy=False)
        pieces = (samples[i * LONGEST : (i + 1) * LONGEST] for i in range(len(self._windows(len(data)))))
        found = [self.processor.extract(piece) for piece in pieces]
        return [View(each.frames[: each.n_real], each.n_real, 1) for each in found]

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|audio>", sum(layout.n_tokens), "<audio|>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        def in_pieces(stage: str, rows: Floats, most: int) -> Floats:
            pieces = [run(stage, rows[begin : begin + most]) for begin in range(0, len(rows), most)]
            return np.concatenate(pieces)

        x = view.patches[:, :, None]
        for i in range(2):
            room = np.empty((-(-x.shape[0] // 2) * -(-x.shape[1] // 2) * 9, x.shape[2]), np.float32).reshape(-1)
            shape = (x.shape[0] + 1) // 2, (x.shape[1] + 1) // 2, self.channels[i + 1]
            x = in_pieces(f"convolution {i}", squares_under(x, room), view.n_rows).reshape(shape)
        most = -(-view.n_rows // FRAMES_PER_ROW)
        states = in_pieces("begin", x.reshape(len(x), -1), most)
        for i, layer in enumerate(self.layers):
            states, q, k, v = np.split(states, 4, axis=1)
            inputs = np.concatenate([states, layer.attended(q, k, v)], axis=1)
            states, y = np.split(in_pieces(f"between {i}", inputs, most), 2, axis=1)
            states = in_pieces(f"after {i}", np.concatenate([states, layer.convolved(y)], axis=1), most)
        return in_pieces("projector", states, most)


SIZES = ("embedding_length", "block_count", "attention.head_count", "num_mel_bins", "projection_dim")
MODELS = {"gemma4a": Gemma4Audio}

# --- checkpoint ---

_LAYER = "audio_tower.layers.{i}"
_LINEARS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.post", "conv_pw1": "lconv1d.linear_start", "conv_pw2": "lconv1d.linear_end",
    "ffn_up": "feed_forward1.ffw_layer_1", "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_up_1": "feed_forward2.ffw_layer_1", "ffn_down_1": "feed_forward2.ffw_layer_2",
}  # fmt: skip
_OTHERS = {
    "attn_pre_norm": "norm_pre_attn", "attn_post_norm": "norm_post_attn", "ln2": "norm_out",
    "attn_k_rel": "self_attn.relative_k_proj",
    "conv_norm": "lconv1d.pre_layer_norm", "norm_conv": "lconv1d.conv_norm",
    "ffn_norm": "feed_forward1.pre_layer_norm", "ffn_post_norm": "feed_forward1.post_layer_norm",
    "ffn_norm_1": "feed_forward2.pre_layer_norm", "ffn_post_norm_1": "feed_forward2.post_layer_norm",
}  # fmt: skip
# Settings that llama.cpp has no keys for.
_FIXED: Mapping[str, object] = {
    "hidden_act": "silu", "residual_weight": 0.5, "attention_chunk_size": 12, "attention_context_left": POSITIONS,
    "attention_context_right": 0, "attention_logit_cap": CAP, "attention_invalid_logits_value": -1e9,
    "gradient_clipping": 1e10,
}  # fmt: skip


def _n_mels(config: Fields) -> int:
    """Return the mel bins, which transformers' projection has room for if they are as many as the first channels."""
    channels = config.items("subsampling_conv_channels")
    return int(str(channels[0])) if channels else 128


def _softplus(x: Array, config: Fields) -> Array:
    return np.logaddexp(x, 0).astype(np.float32)


def _as_matrix(x: Array, config: Fields) -> Array:
    return x.reshape(len(x), -1)


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    config = model.inner("audio_config")
    for name, wanted in _FIXED.items():
        if config.has(name) and (value := config.value(name)) != wanted:
            raise UnsupportedError(f"[convert] unsupported '{name}' of the audio encoder: {value!r:.40}")
    table: dict[str, str | Source] = {
        "a.input_projection": "audio_tower.subsample_conv_projection.input_proj_linear",
        "a.pre_encode.out": "audio_tower.output_proj",
        "mm.a.input_projection": "embed_audio.embedding_projection",
        "a.blk.{i}.per_dim_scale.weight": tensor(f"{_LAYER}.self_attn.per_dim_scale", change=_softplus),
        "a.blk.{i}.conv_dw.weight": tensor(f"{_LAYER}.lconv1d.depthwise_conv1d.weight", change=_as_matrix),
    }
    for i in range(2):
        part = f"audio_tower.subsample_conv_projection.layer{i}"
        table |= {f"a.conv1d.{i}": f"{part}.conv", f"a.conv1d.{i}.norm": f"{part}.norm"}
    table |= {f"a.blk.{{i}}.{ours}": f"{_LAYER}.{theirs}" for ours, theirs in _OTHERS.items()}
    return table | clipped_linears("a", _LAYER, _LINEARS, has_limits=config.flag("use_clipped_linears", True))


HF = {
    "Gemma4ForConditionalGeneration": MediaCheckpoint(
        "gemma4a",
        "audio_config",
        {
            "audio_tower.": ("model.audio_tower.", "audio_tower."),
            "embed_audio.": ("model.embed_audio.", "embed_audio."),
        },
        {
            "audio.embedding_length": u32("hidden_size", default=1024),
            "audio.block_count": u32("num_hidden_layers", default=12),
            "audio.feed_forward_length": computed("u32", lambda config: 4 * config.integer("hidden_size", 1024)),
            "audio.attention.head_count": u32("num_attention_heads", default=8),
            "audio.attention.layer_norm_epsilon": computed("f32", lambda config: config.number("rms_norm_eps", 1e-6)),
            "audio.num_mel_bins": computed("u32", _n_mels),
        },
        _tensors,
        whole_keys={"audio.projection_dim": computed("u32", text_width)},
    )
}
