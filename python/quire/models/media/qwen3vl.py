"""Qwen3-VL (Bai et al. 2025), Qwen3.5 and 3.6: learned position embeddings, and RoPE by row and column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..._native.graph import concat, slice
from ...checkpoints.mapping import Fields, Source, computed, u32
from ...media import View
from ...media.image_processor import MAX_PATCHES
from ...media.pixels import Floats
from ...media.processors.qwen_vl import video_resize
from ...media.video import FRAME_RATE, MAX_FRAMES, Video
from ...nn import Keys, Step, Tensor, Weights
from .base import RunStage, Stage
from .checkpoint import MediaCheckpoint
from .grids import bilinear_rows, merged_places
from .qwen_vl import EPS, FRAME_TENSORS, FRAMES, MIN_FRAMES, SIZE_KEYS, VIDEO_KEYS, QwenVl
from .vit import Block, Projector, embedded


class DeepMerger:
    """A ``Projector`` of normed states."""

    def __init__(self, weights: Weights, dim: int, n_out: int) -> None:
        self.norm = weights.layer_norm("norm", dim, EPS, bias=True)
        self.project = Projector(weights, ("fc1", "fc2"), dim, dim, n_out)

    def __call__(self, x: Tensor) -> Tensor:
        return self.project(self.norm(x))


class Qwen3Vl(QwenVl):
    VIDEO_LIMITS = (4096, 25165824)  # as in published checkpoints

    def __init__(self, keys: Keys, weights: Weights) -> None:
        super().__init__(keys, weights)
        keys.only("use_gelu", True)
        if keys.flag("has_audio_encoder", False):  # Qwen3-Omni, which interleaves a video with its sound
            self.video_pad = ""
        is_tapped = keys.integers("vision.is_deepstack_layers", self.n_layer, 0, high=1)
        self.taps = [i for i, tapped in enumerate(is_tapped) if tapped]
        ffn_dim = keys.integer("vision.feed_forward_length", low=1, high=1 << 16)

        vision = weights.scope("v")
        side = int(vision.n_rows("position_embd.weight") ** 0.5)
        self.positions = vision.numbers("position_embd.weight", (side * side, self.dim)).reshape(side, side, self.dim)
        self.blocks = [
            Block(block, self.dim, ffn_dim, self.n_head, eps=EPS, activation="gelu_tanh", rotation=self.rotation)
            for block in vision.blocks(self.n_layer)
        ]
        self.norm = vision.layer_norm("post_ln", self.dim, EPS, bias=True)

        merged = self.dim * self.merge**2
        self.mergers: list[Callable[[Tensor], Tensor]] = [
            Projector(weights.scope("mm"), ("0", "2"), merged, merged, self.n_text),
            *(DeepMerger(vision.scope(f"deepstack.{i}"), merged, self.n_text) for i in self.taps),
        ]
        self.n_out = self.n_text * len(self.mergers)
        self.stages = {
            "encoder": Stage(self.encode, n_layer=self.n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def frames_of(self, n_frames: int, rate: float) -> Sequence[int]:
        n = min(max(int(n_frames / rate * FRAME_RATE), MIN_FRAMES), MAX_FRAMES, n_frames)
        found: list[int] = np.linspace(0, n_frames - 1, n).round().astype(int).tolist()
        return found

    def frame_size(self, n_frames: int, height: int, width: int) -> tuple[int, int]:
        unit, frames = self.patch_size * self.merge, max(n_frames, FRAMES)
        if min(height, width) < unit:
            scale = max(unit / height, unit / width)
            height, width = int(height * scale), int(width * scale)
        least, most = self.video_limits
        most = min(most, frames * MAX_PATCHES * self.patch_size**2)
        return video_resize(frames, height, width, unit, min_pixels=least, max_pixels=most)

    def video_markup(self, video: Video, n_pairs: int, n_tokens: int) -> Sequence[str | int]:
        times = [*video.times, *video.times[-1:] * (len(video.times) % FRAMES)]
        markup: list[str | int] = [""]
        for first, last in zip(times[::FRAMES], times[FRAMES - 1 :: FRAMES], strict=True):
            markup[-1] = f"{markup[-1]}<{(first + last) / 2:.1f} seconds>{self.around[0]}"
            markup += [n_tokens, self.around[1]]
        return markup

    def video_steps(self, video: Video, n_pairs: int) -> Sequence[int]:
        return (0,)  # each pair has a place of its own in the text

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = merged_places(view.n_rows, view.n_cols, self.merge)
        positions = bilinear_rows(self.positions, view.n_rows, view.n_cols)[rows, cols]
        axes = np.stack([np.zeros_like(rows), rows, cols])
        states = run("encoder", np.concatenate([view.patches, positions], axis=1), axes)
        # The patches of a square follow each other.  A token's input is that of the first merger, then of the next.
        squares = states.reshape(-1, self.merge**2, len(self.mergers), self.dim)
        return run("projector", squares.transpose(0, 2, 1, 3).reshape(len(squares), -1))

    def encode(self, step: Step) -> Tensor:
        x = embedded(step, self.patch_embedding, self.patch_dim, self.dim)
        step = replace(step, kept=frozenset(self.taps))
        states = self.norm(step.run_layers(self.blocks, x))
        for layer in self.taps:
            states = concat(states, step.states[layer], 0)
        return states

    def project(self, step: Step) -> Tensor:
        n = self.dim * self.merge**2
        states = step.features(n * len(self.mergers))
        tokens = self.mergers[0](slice(states, 0, 0, n))
        for i, merger in enumerate(self.mergers[1:], 1):
            tokens = concat(tokens, merger(slice(states, 0, i * n, (i + 1) * n)), 0)
        return tokens


MODELS = {"qwen3vl_merger": Qwen3Vl}

# --- checkpoint ---


def _tapped(config: Fields) -> list[bool]:
    taps = config.items("deepstack_visual_indexes")
    return [i in taps for i in range(config.integer("depth"))]


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    table: dict[str, str | Source] = {
        **FRAME_TENSORS,
        "v.position_embd": "visual.pos_embed",
        "v.blk.{i}.ln1": "visual.blocks.{i}.norm1",
        "v.blk.{i}.ln2": "visual.blocks.{i}.norm2",
        "v.blk.{i}.attn_qkv": "visual.blocks.{i}.attn.qkv",
        "v.blk.{i}.attn_out": "visual.blocks.{i}.attn.proj",
        "v.blk.{i}.ffn_up": "visual.blocks.{i}.mlp.linear_fc1",
        "v.blk.{i}.ffn_down": "visual.blocks.{i}.mlp.linear_fc2",
        "v.post_ln": "visual.merger.norm",
        "mm.0": "visual.merger.linear_fc1",
        "mm.2": "visual.merger.linear_fc2",
    }
    taps = [i for i, tapped in enumerate(_tapped(model.inner("vision_config"))) if tapped]
    for k, layer in enumerate(taps):
        for ours, theirs in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2")):
            table[f"v.deepstack.{layer}.{ours}"] = f"visual.deepstack_merger_list.{k}.{theirs}"
    return table


def _omni_tensors(model: Fields) -> Mapping[str, str | Source]:
    """Return the tensors as Qwen3-Omni names them."""
    parts = {"norm": "ln_q", "linear_fc1": "mlp.0", "linear_fc2": "mlp.2"}
    table = dict(_tensors(model))
    for ours, theirs in table.items():
        if "merger" in (name := str(theirs)):
            path, part = name.replace("deepstack_merger_list", "merger_list").rsplit(".", 1)
            table[ours] = f"{path}.{parts[part]}"
    return table


_QWEN = MediaCheckpoint(
    "qwen3vl_merger",
    "vision_config",
    {"visual.": ("model.visual.", "visual.")},
    {
        **SIZE_KEYS,
        "use_gelu": computed("bool", lambda config: True),
        "vision.embedding_length": u32("hidden_size"),
        "vision.feed_forward_length": u32("intermediate_size"),
        "vision.projection_dim": u32("out_hidden_size"),
        "vision.image_size": computed(
            "u32", lambda config: int(config.integer("num_position_embeddings") ** 0.5) * config.integer("patch_size")
        ),
        "vision.is_deepstack_layers": computed("bool[]", _tapped),
    },
    _tensors,
    video_settings=VIDEO_KEYS,
)
_OMNI = replace(
    _QWEN, roots={"visual.": ("thinker.visual.", "model.visual.", "visual.")}, tensors=_omni_tensors, video_settings={}
)
HF = {
    "Qwen3OmniMoeForConditionalGeneration": _OMNI,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _OMNI,
    "Qwen3VLForConditionalGeneration": _QWEN,
    "Qwen3VLMoeForConditionalGeneration": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
}
