"""Whisper's encoder (Radford et al. 2022), as language models use it: convolutions over time, transformer blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...checkpoints.mapping import Fields, Key, Source, computed, tensor, u32
from ...checkpoints.mapping.changes import Array
from ...errors import LoadError, RequestError, UnsupportedError
from ...files.gguf import GGUFReader
from ...media import Layout, View
from ...media.audio import Samples
from ...media.audio.whisper import WhisperFeatures
from ...media.pixels import Floats
from ...nn import Keys, Linear, Step, Tensor, Weights, activate
from .base import MediaModel, RunStage, Stage
from .vit import Block

__all__ = [
    "CONVOLUTIONS", "KEYS", "LAYER", "SIZES", "TAPS", "WINDOW", "SoundWindow", "Whisper", "WhisperSource", "column",
    "encoder_tensors", "frames_under", "load_source",
]  # fmt: skip

# Frames of the longest sound that is encoded as a whole: 30 seconds.
WINDOW = 3000
# Frames that a convolution sees.
TAPS = 3


@dataclass(frozen=True)
class SoundWindow(View):
    """Consecutive frames of a sound: ``n_rows``, the first ``n_real`` of which are no padding."""

    n_real: int = 0


def frames_under(rows: Floats, stride: int, n: int) -> Floats:
    """Return, for each of ``n`` outputs of a convolution over time, the three input rows it sees, side by side."""
    padded = np.pad(rows, ((1, stride), (0, 0)))
    return np.concatenate([padded[tap : tap + n * stride : stride] for tap in range(TAPS)], axis=1)


class Whisper(MediaModel):
    """The encoder; families differ in what they do with its hidden states.

    Attributes:
        is_padded: Sounds are padded with silence to whole windows.
    """

    kind = "audio"
    is_padded: ClassVar[bool] = True
    processor: WhisperFeatures

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"audio.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, self.n_out = read["embedding_length"], read["projection_dim"]
        self.patch_dim, n_layer = read["num_mel_bins"], read["block_count"]
        n_head, self.eps = read["attention.head_count"], keys.number("audio.attention.layer_norm_epsilon")
        if self.dim % n_head or self.patch_dim > 256:
            raise LoadError(f"[clip] unsupported sizes: {self.dim} numbers, {n_head} heads, {self.patch_dim} mel bins")
        self.processor = WhisperFeatures(self.patch_dim)

        audio = weights.scope("a")
        self.convolutions = [
            self._convolution(audio, f"conv1d.{i}", n) for i, n in ((1, self.patch_dim), (2, self.dim))
        ]
        self.positions = audio.embedding("position_embd", WINDOW // 2, self.dim)
        self.blocks = [
            Block(block, self.dim, read["feed_forward_length"], n_head, eps=self.eps, activation="gelu")
            for block in audio.blocks(n_layer)
        ]
        self.norm = audio.layer_norm("post_ln", self.dim, self.eps, bias=True)
        self.stages = {
            "convolution": Stage(self.convolve),
            "encoder": Stage(self.encode, patches_per_row=2, n_layer=n_layer),
        }

    def _convolution(self, weights: Weights, name: str, n_in: int) -> Linear:
        """Return a convolution as a product with the frames under it, side by side."""
        # Files store them as f16.  In f32 their inputs, whose values vary most, are not rounded; it takes little time.
        kernel = weights.dequantized(f"{name}.weight", (self.dim, n_in, TAPS)).transpose(0, 2, 1).astype(np.float32)
        bias = weights.tensor(f"{name}.bias", (self.dim,), vector=True, stored=(self.dim, 1))
        return Linear(weights.computed(f"{name}.rows", kernel.reshape(self.dim, TAPS * n_in)), bias)

    @abstractmethod
    def n_tokens(self, n_real: int) -> int:
        """Return how many tokens a window takes."""

    @abstractmethod
    def project(self, states: Floats, run: RunStage) -> Floats:
        """Return the output rows of the encoder's hidden states ``[n, dim]``."""

    def n_states(self, n_real: int) -> int:
        """Return how many hidden states are computed: by default, one for every two frames."""
        return -(-n_real // 2)

    def _windows(self, n_samples: int) -> list[tuple[int, int]]:
        """Return the frames and real frames of each window."""
        n_real = -(-n_samples // 160) if self.is_padded else n_samples // 160
        found = []
        for begin in range(0, n_real, WINDOW):
            real = min(n_real - begin, WINDOW)
            found.append((WINDOW if self.is_padded else real, real))
        return [(n, real) for n, real in found if self.n_tokens(real) > 0]

    def layout(self, data: npt.NDArray[Any]) -> Layout:
        windows = self._windows(len(data))
        if not windows:
            raise RequestError(f"the audio has {len(data)} samples: it is too short for the model")
        return Layout(tuple((n, 1) for n, _ in windows), 0, 0, tuple(self.n_tokens(real) for _, real in windows))

    def views(self, data: npt.NDArray[Any]) -> list[View]:
        samples: Samples = data.astype(np.float32, copy=False)
        windows = self._windows(len(samples))
        frames = self.processor.extract(samples, 160 * WINDOW * len(windows) if self.is_padded else 0).frames
        return [SoundWindow(frames[i * WINDOW : i * WINDOW + n], n, 1, real) for i, (n, real) in enumerate(windows)]

    def rows(self, view: View, run: RunStage) -> Floats:
        assert isinstance(view, SoundWindow)
        n = self.n_states(view.n_real)
        # The second convolution sees two frames for each of its outputs, and one before them.
        frames = run("convolution", frames_under(view.patches, 1, min(2 * n, view.n_rows)))
        return self.project(run("encoder", frames_under(frames, 2, n)), run)

    def convolve(self, step: Step) -> Tensor:
        return activate(self.convolutions[0](step.features(TAPS * self.patch_dim)), "gelu")

    def encode(self, step: Step) -> Tensor:
        x = activate(self.convolutions[1](step.features(TAPS * self.dim)), "gelu") + self.positions(step.positions)
        return step.run_layers(self.blocks, x)


class WhisperSource(Whisper):
    """The encoder of Whisper itself; its decoder reads all hidden states of 30 seconds, those of padding as well."""

    # No prompt has one.
    pad = "<|startoftranscript|>"

    def n_tokens(self, n_real: int) -> int:
        return WINDOW // 2

    def n_states(self, n_real: int) -> int:
        return WINDOW // 2

    def project(self, states: Floats, run: RunStage) -> Floats:
        return states

    def encode(self, step: Step) -> Tensor:
        return self.norm(super().encode(step))


def load_source(reader: GGUFReader) -> WhisperSource:
    """Read the encoder in the file of a Whisper.  LoadError if a key or a tensor is missing or does not fit."""
    return WhisperSource(Keys(reader.metadata), Weights(reader, lambda tensor: tensor))


SIZES = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "num_mel_bins", "projection_dim",
)  # fmt: skip

# --- checkpoint ---


def column(x: Array, config: Fields) -> Array:
    """Add a column to a convolution's bias, as ggml's convolutions do."""
    return x[:, None]


def encoder_tensors(model: Fields) -> dict[str, str | Source]:
    """Return the encoder's tensors.

    Raises:
        UnsupportedError: Another activation than GELU.
    """
    fields = (model.inner("audio_config"), "activation_function"), (model, "projector_hidden_act")
    for config, name in fields:
        if (value := config.text(name, "gelu")) != "gelu":
            raise UnsupportedError(f"[convert] unsupported '{name}': {value!r:.40}")
    table: dict[str, str | Source] = {
        "a.position_embd": "audio_tower.embed_positions",
        "a.post_ln": "audio_tower.layer_norm",
    }
    for i in (1, 2):
        table[f"a.conv1d.{i}.weight"] = f"audio_tower.conv{i}.weight"
        table[f"a.conv1d.{i}.bias"] = tensor(f"audio_tower.conv{i}.bias", change=column)
    for ours, theirs in LAYER.items():
        table[f"a.blk.{{i}}.{ours}"] = f"audio_tower.layers.{{i}}.{theirs}"
    return table


LAYER = {
    "ln1": "self_attn_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln2": "final_layer_norm",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}

CONVOLUTIONS = ("a.conv1d.*.weight",)
KEYS: Mapping[str, Key] = {
    "audio.embedding_length": u32("d_model", "hidden_size", default=1280),
    "audio.block_count": u32("encoder_layers", "num_hidden_layers", default=32),
    "audio.feed_forward_length": u32("encoder_ffn_dim", "intermediate_size", default=5120),
    "audio.attention.head_count": u32("encoder_attention_heads", "num_attention_heads", default=20),
    "audio.attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
    "audio.num_mel_bins": u32("num_mel_bins", default=128),
}
