"""Qwen3-ASR (2026) and the audio of Qwen3-Omni: convolutions over seconds of sound, attention within 8 seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checkpoints.mapping import Fields, Source, tensor, u32
from ...checkpoints.mapping.changes import Array
from ...errors import LoadError, RequestError, UnsupportedError
from ...media import Layout, View
from ...media.audio.whisper import WhisperFeatures
from ...media.pixels import Floats
from ...nn import Keys, Linear, Step, Tensor, Weights, activate
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint
from .vit import Block
from .whisper import KEYS, LAYER, SIZES, SoundWindow

# Frames that are convolved together, and that attend to each other; samples that shorter sounds are padded to.
CHUNK, WINDOW, SHORTEST = 100, 800, 8000
N_CONVOLUTIONS = 3


def convolved(n: int) -> int:
    """Return how many outputs the convolutions make of ``n`` inputs."""
    for _ in range(N_CONVOLUTIONS):
        n = (n + 1) // 2
    return n


def squares_under(x: Floats, room: Floats) -> Floats:
    """Return the inputs of a 3x3 convolution of stride 2: of ``[rows, cols, channels]``, 9 * channels a row.

    They are in ``room``, since fresh memory takes longer than the copies.
    """
    n_rows, n_cols = (x.shape[0] + 1) // 2, (x.shape[1] + 1) // 2
    squares = room[: n_rows * n_cols * 9 * x.shape[2]].reshape(n_rows, n_cols, 3, 3, -1)
    squares[[0, -1]] = squares[:, [0, -1]] = 0  # the part that lies outside
    for i, k in np.ndindex(3, 3):
        taps = x[(1, 0, 1)[i] :: 2, (1, 0, 1)[k] :: 2]
        first_row, first_col = i == 0, k == 0
        taps = taps[: n_rows - first_row, : n_cols - first_col]
        squares[first_row : first_row + len(taps), first_col : first_col + taps.shape[1], i, k] = taps
    return squares.reshape(n_rows * n_cols, -1)


class Qwen3Audio(MediaModel):
    """A view is a window of whole chunks; its last chunk may end in frames of zeros."""

    kind = "audio"
    pad = "<|audio_pad|>"
    template_text = "<|audio_start|><|audio_pad|><|audio_end|>"
    processor: WhisperFeatures

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"audio.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, self.n_out = read["embedding_length"], read["projection_dim"]
        self.patch_dim, n_layer = read["num_mel_bins"], read["block_count"]
        n_head, eps = read["attention.head_count"], keys.number("audio.attention.layer_norm_epsilon")
        if self.dim % n_head or self.patch_dim > 256:
            raise LoadError(f"[clip] unsupported sizes: {self.dim} numbers, {n_head} heads, {self.patch_dim} mel bins")
        self.processor = WhisperFeatures(self.patch_dim)
        self.shortest = 0 if keys.flag("has_vision_encoder", False) else SHORTEST  # Qwen3-Omni pads no sounds

        audio = weights.scope("a")
        self.n_channels = audio.n_rows("conv2d.1.weight")
        self.joined = audio.linear("conv_out", self.n_channels * convolved(self.patch_dim), self.dim)
        # Files store convolutions as f16.  In f32, their inputs are not rounded: where no other product's are, and the
        # spectrogram, whose values vary most.
        is_f32 = self.joined.weight.dtype == "f32"
        self.convolutions = [
            self._convolution(audio, f"conv2d.{i + 1}", self.n_channels if i else 1, is_f32=is_f32 or i == 0)
            for i in range(N_CONVOLUTIONS)
        ]
        n_positions = audio.n_rows("position_embd.weight")
        self.positions = audio.numbers("position_embd.weight", (n_positions, self.dim))
        if n_positions < convolved(CHUNK):
            raise LoadError(f"[clip] position_embd has {n_positions} rows: expected {convolved(CHUNK)} or more")
        ffn_dim = read["feed_forward_length"]
        self.blocks = [
            Block(block, self.dim, ffn_dim, n_head, eps=eps, activation="gelu") for block in audio.blocks(n_layer)
        ]
        self.norm = audio.layer_norm("post_ln", self.dim, eps, bias=True)
        projector = weights.scope("mm.a.mlp")
        self.up = projector.linear("1", self.dim, self.dim, bias=True)
        self.down = projector.linear("2", self.dim, self.n_out, bias=True)
        self.stages = {
            **{f"convolution {i}": Stage(self._convolve(i)) for i in range(N_CONVOLUTIONS)},
            "join": Stage(lambda step: self.joined(step.features(self.n_channels * convolved(self.patch_dim)))),
            "encoder": Stage(self.encode, n_layer=n_layer),
        }

    def _convolution(self, weights: Weights, name: str, n_in: int, *, is_f32: bool) -> Linear:
        kernel = weights.dequantized(f"{name}.weight", (self.n_channels, n_in, 3, 3))
        kernel = kernel.astype(np.float32) if is_f32 else kernel
        bias = weights.tensor(f"{name}.bias", (self.n_channels,), vector=True, stored=(self.n_channels, 1, 1))
        rows = kernel.transpose(0, 2, 3, 1).reshape(self.n_channels, 9 * n_in)
        return Linear(weights.computed(f"{name}.rows", rows), bias)

    def _convolve(self, i: int) -> Any:
        n_in = 9 * (self.n_channels if i else 1)
        return lambda step: activate(self.convolutions[i](step.features(n_in)), "gelu")

    def _frames(self, n_samples: int) -> int:
        if not (n := self.processor.n_frames(max(n_samples, self.shortest))):
            raise RequestError(f"the audio has {n_samples} samples: it is too short for the model")
        return n

    def layout(self, data: npt.NDArray[Any]) -> Layout:
        n = self._frames(len(data))
        windows = [min(n - begin, WINDOW) for begin in range(0, n, WINDOW)]
        # Qwen3-Omni pads chunks to the longest.
        is_alone = n < CHUNK and not self.shortest
        grids = tuple((real if is_alone else -(-real // CHUNK) * CHUNK, 1) for real in windows)
        n_tokens = tuple(real // CHUNK * convolved(CHUNK) + convolved(real % CHUNK) for real in windows)
        return Layout(grids, 0, 0, n_tokens)

    def views(self, data: npt.NDArray[Any]) -> list[View]:
        frames = self.processor.extract(data.astype(np.float32, copy=False), self.shortest).frames
        grids = self.layout(data).views
        padded = np.pad(frames, ((0, sum(n_rows for n_rows, _ in grids) - len(frames)), (0, 0)))
        return [
            SoundWindow(padded[begin : begin + WINDOW], n_rows, 1, min(len(frames) - begin, WINDOW))
            for begin, (n_rows, _) in zip(range(0, len(frames), WINDOW), grids, strict=True)
        ]

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|audio_start|>", sum(layout.n_tokens), "<|audio_end|>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        assert isinstance(view, SoundWindow)
        found = []
        # The second convolution has a quarter of the first one's outputs.
        room = np.empty(9 * max(self.n_channels, 4) * -(-self.patch_dim // 4) * -(-CHUNK // 4), np.float32)
        for begin in range(0, view.n_real, CHUNK):
            # The reference's rows are mel bins, its columns are frames.
            x = view.patches[begin : begin + CHUNK].T[:, :, None]
            for i in range(N_CONVOLUTIONS):
                shape = (x.shape[0] + 1) // 2, (x.shape[1] + 1) // 2, self.n_channels
                x = self._in_pieces(run, f"convolution {i}", squares_under(x, room), view.n_rows).reshape(shape)
            joined = run("join", x.transpose(1, 2, 0).reshape(x.shape[1], -1))
            n_tokens = convolved(min(view.n_real - begin, CHUNK))
            found.append((joined + self.positions[: len(joined)])[:n_tokens])
        return run("encoder", np.concatenate(found))

    @staticmethod
    def _in_pieces(run: RunStage, stage: str, rows: Floats, most: int) -> Floats:
        """Run a stage that has more rows than the view has patches."""
        if len(rows) <= most:
            return run(stage, rows)
        return np.concatenate([run(stage, rows[begin : begin + most]) for begin in range(0, len(rows), most)])

    def encode(self, step: Step) -> Tensor:
        x = self.norm(step.run_layers(self.blocks, step.features(self.dim)))
        return self.down(activate(self.up(x), "gelu"))


MODELS = {"qwen3a": Qwen3Audio}

# --- checkpoint ---


def sinusoids(x: Array, config: Fields) -> Array:
    """Return the positions, which checkpoints omit, for a tensor of their width; as many as llama.cpp writes."""
    half = len(x) // 2
    steps = np.exp(-np.log(10000) / (half - 1) * np.arange(half, dtype=np.float32))
    angles = np.arange(1500)[:, None] * steps[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _corner(x: Array, config: Fields) -> Array:
    return x[:, None, None]


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    audio = model.inner("audio_config")
    sizes = audio.integer("n_window", CHUNK // 2), audio.integer("n_window_infer", WINDOW)
    if sizes != (CHUNK // 2, WINDOW) or audio.text("activation_function", "gelu") != "gelu":
        raise UnsupportedError(f"[convert] unsupported audio encoder: n_window and n_window_infer are {sizes}")
    table: dict[str, str | Source] = {
        "a.position_embd.weight": tensor("audio_tower.ln_post.bias", change=sinusoids),
        "a.conv_out": "audio_tower.conv_out",
        "a.post_ln": "audio_tower.ln_post",
        "mm.a.mlp.1": "multi_modal_projector.linear_1",
        "mm.a.mlp.2": "multi_modal_projector.linear_2",
    }
    for i in range(1, N_CONVOLUTIONS + 1):
        table[f"a.conv2d.{i}.weight"] = f"audio_tower.conv2d{i}.weight"
        table[f"a.conv2d.{i}.bias"] = tensor(f"audio_tower.conv2d{i}.bias", change=_corner)
    return table | {f"a.blk.{{i}}.{ours}": f"audio_tower.layers.{{i}}.{theirs}" for ours, theirs in LAYER.items()}


def _omni_tensors(model: Fields) -> Mapping[str, str | Source]:
    """Return the tensors as Qwen3-Omni names them."""
    return {**_tensors(model), **{f"mm.a.mlp.{i}": f"audio_tower.proj{i}" for i in (1, 2)}}


_OMNI = MediaCheckpoint(
    "qwen3a",
    "audio_config",
    {"audio_tower.": ("thinker.audio_tower.", "model.audio_tower.", "audio_tower.")},
    {**KEYS, "audio.projection_dim": u32("output_dim", default=3584)},
    _omni_tensors,
    f16=("a.conv2d.*.weight",),
)
HF = {
    "Qwen3OmniMoeForConditionalGeneration": _OMNI,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _OMNI,
    "Qwen3ASRForConditionalGeneration": MediaCheckpoint(
        "qwen3a",
        "audio_config",
        {"audio_tower.": ("model.audio_tower.",), "multi_modal_projector.": ("model.multi_modal_projector.",)},
        {
            **KEYS,
            "audio.embedding_length": u32("d_model", "hidden_size", default=1024),
            "audio.block_count": u32("encoder_layers", "num_hidden_layers", default=24),
            "audio.feed_forward_length": u32("encoder_ffn_dim", "intermediate_size", default=4096),
            "audio.attention.head_count": u32("encoder_attention_heads", "num_attention_heads", default=16),
            "audio.projection_dim": u32("output_dim", default=3584),
        },
        _tensors,
        f16=("a.conv2d.*.weight",),
    ),
}
