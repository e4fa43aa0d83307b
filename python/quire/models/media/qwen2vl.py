"""Qwen2-VL (Wang et al. 2024) and Qwen2.5-VL (Bai et al. 2025): attention in windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..._native.graph import quick_gelu
from ...checkpoints.mapping import Array, Change, Fields, Source, computed, f32, tensor, u32
from ...errors import LoadError, UnsupportedError
from ...media import View
from ...media.pixels import Floats
from ...media.video import Video
from ...nn import Keys, Step, Tensor, Weights
from .base import RunStage, Stage
from .checkpoint import MediaCheckpoint
from .grids import merged_places, window_order
from .qwen_vl import EPS, FRAME_TENSORS, FRAMES, SIZE_KEYS, VIDEO_KEYS, QwenVl
from .vit import Block, Projector, ffn_width

if TYPE_CHECKING:
    from ..._native.graph import Activation

WINDOW = 112  # pixels; llama.cpp writes no key


class Qwen2Vl(QwenVl):
    """All layers have full attention, layer norms and a plain MLP."""

    IS_RMS: ClassVar[bool] = False

    def __init__(self, keys: Keys, weights: Weights) -> None:
        super().__init__(keys, weights)
        keys.only("use_gelu", False)
        keys.only("use_silu", self.IS_RMS)
        keys.without_effect("vision.feed_forward_length")  # llama.cpp writes the language model's width for Qwen2-VL
        period, self.side = self.read_windows(keys)
        vision = weights.scope("v")
        ffn_dim = ffn_width(vision, self.dim)
        activation: Activation | Callable[[Tensor], Tensor] = "silu" if self.IS_RMS else quick_gelu
        self.blocks = [
            Block(
                block, self.dim, ffn_dim, self.n_head, eps=EPS, activation=activation, rotation=self.rotation,
                is_rms=self.IS_RMS,
            )
            for block in vision.blocks(self.n_layer)
        ]  # fmt: skip
        self.norm: Callable[[Tensor], Tensor] = (
            vision.norm("post_ln", self.dim, EPS)
            if self.IS_RMS
            else vision.layer_norm("post_ln", self.dim, EPS, bias=True)
        )
        merged = self.dim * self.merge**2
        self.project = Projector(weights.scope("mm"), ("0", "2"), merged, merged, self.n_text)
        self.n_out = self.n_text
        # Layers that attend to the same rows are a stage.
        self.runs: dict[str, bool] = {}
        stages = {}
        for is_full, run in groupby(range(self.n_layer), lambda i: not period or (i + 1) % period == 0):
            layers = list(run)
            name = f"layers.{layers[0]}"
            self.runs[name] = is_full
            stages[name] = Stage(
                partial(self.encode, first=layers[0], end=layers[-1] + 1), n_layer=len(layers),
                # Only the last windows of a narrow grid have fewer rows than one side.
                rows_per_sequence=0 if is_full else self.side * self.merge**2,
            )  # fmt: skip
        stages["projector"] = Stage(lambda step: self.project(step.features(merged)), patches_per_row=self.merge**2)
        self.stages = stages

    def read_windows(self, keys: Keys) -> tuple[int, int]:
        """Return n, if every n-th layer has full attention and others windows, and their side in tokens; 0: no windows.

        Raises:
            LoadError: A window holds no token.
        """
        keys.only("vision.n_wa_pattern", 0)
        return 0, 0

    def rows(self, view: View, run: RunStage) -> Floats:
        square = self.merge**2
        n_rows, n_cols = view.n_rows // self.merge, view.n_cols // self.merge
        order, lengths = window_order(n_rows, n_cols, self.side or max(n_rows, n_cols))
        places = (order[:, None] * square + np.arange(square)).reshape(-1)
        rows, cols = (axis[places] for axis in merged_places(view.n_rows, view.n_cols, self.merge))
        axes = np.stack([np.zeros_like(rows), rows, cols])
        states = view.patches[places]
        for name, is_full in self.runs.items():
            states = run(name, states, axes, None if is_full else (lengths * square).tolist())
        tokens = run("projector", states.reshape(len(order), -1))
        ordered = np.empty_like(tokens)
        ordered[order] = tokens
        return ordered

    def encode(self, step: Step, first: int, end: int) -> Tensor:
        x = step.features(self.dim) if first else self.patch_embedding(step.features(self.patch_dim))
        x = step.run_layers(self.blocks[first:end], x)
        return self.norm(x) if end == self.n_layer else x


class Qwen25Vl(Qwen2Vl):
    """Most layers attend within windows; norms are root-mean-square, and the MLP is gated."""

    IS_RMS = True

    def video_steps(self, video: Video, n_pairs: int) -> Sequence[int]:
        interval = np.float32(self.tokens_per_second * FRAMES / video.rate)
        found: list[int] = (np.arange(n_pairs) * interval).astype(np.int64).tolist()
        return found

    def read_windows(self, keys: Keys) -> tuple[int, int]:
        # A key of Quire's own; published models have 2.
        self.tokens_per_second = keys.number("vision.tokens_per_second", 2.0)
        period = keys.integer("vision.n_wa_pattern", high=1 << 16)
        side = keys.integer("vision.window_size", WINDOW, low=1, high=1 << 16) // (self.patch_size * self.merge)
        if period and not side:
            raise LoadError(f"[clip] no patch fits in a window of {keys.integer('vision.window_size')} pixels")
        return period, side


MODELS = {"qwen2vl_merger": Qwen2Vl, "qwen2.5vl_merger": Qwen25Vl}

# --- checkpoint ---


def _uses(activation: str) -> Callable[[Fields], bool]:
    """Return a function that checks the activation, and returns whether llama.cpp calls it SiLU."""

    def read(config: Fields) -> bool:
        if (found := config.text("hidden_act", activation)) != activation:
            raise UnsupportedError(f"[convert] unsupported 'hidden_act' of the encoder: '{found:.40}'")
        return activation == "silu"

    return read


def _period(config: Fields) -> int:
    """Return n, if every n-th layer has full attention."""
    full = [int(str(i)) for i in config.items("fullatt_block_indexes")] or [7, 15, 23, 31]
    period = full[0] + 1
    if full != list(range(full[0], max(config.integer("depth"), full[-1] + 1), period)):
        raise UnsupportedError(f"[convert] unsupported 'fullatt_block_indexes': {full}")
    return period


def _third(which: int) -> Change:
    """Take q, k or v: llama.cpp reads them as separate tensors."""

    def change(x: Array, config: Fields) -> Array:
        part: Array = x.reshape(3, -1, *x.shape[1:])[which].copy()
        return part

    return change


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    block, is_gated = "visual.blocks.{i}.", str(model.items("architectures")[0]).startswith("Qwen2_5")
    return {
        **FRAME_TENSORS,
        "v.blk.{i}.ln1": f"{block}norm1",
        "v.blk.{i}.ln2": f"{block}norm2",
        **{f"v.blk.{{i}}.attn_{name}": tensor(f"{block}attn.qkv", change=_third(i)) for i, name in enumerate("qkv")},
        "v.blk.{i}.attn_out": f"{block}attn.proj",
        "v.blk.{i}.ffn_gate": f"{block}mlp.gate_proj",
        "v.blk.{i}.ffn_up": f"{block}mlp.{'up_proj' if is_gated else 'fc1'}",
        "v.blk.{i}.ffn_down": f"{block}mlp.{'down_proj' if is_gated else 'fc2'}",
        "v.post_ln": "visual.merger.ln_q",
        "mm.0": "visual.merger.mlp.0",
        "mm.2": "visual.merger.mlp.2",
    }


_ROOTS = {"visual.": ("model.visual.", "visual.", "vlm.visual.", "vlm.model.visual.")}
_QWEN2VL = MediaCheckpoint(
    "qwen2vl_merger",
    "vision_config",
    _ROOTS,
    {
        **SIZE_KEYS,
        "use_silu": computed("bool", _uses("quick_gelu")),
        "vision.embedding_length": u32("embed_dim"),
        "vision.feed_forward_length": computed(
            "u32", lambda config: config.integer("embed_dim") * config.integer("mlp_ratio", 4)
        ),
        "vision.projection_dim": u32("hidden_size"),
    },
    _tensors,
    video_settings=VIDEO_KEYS,
)
HF = {
    "Qwen2VLForConditionalGeneration": _QWEN2VL,
    "ColQwen2ForRetrieval": _QWEN2VL,
    "Qwen2_5_VLForConditionalGeneration": MediaCheckpoint(
        "qwen2.5vl_merger",
        "vision_config",
        _ROOTS,
        {
            **SIZE_KEYS,
            "use_silu": computed("bool", _uses("silu")),
            "vision.embedding_length": u32("hidden_size"),
            "vision.feed_forward_length": u32("intermediate_size"),
            "vision.projection_dim": u32("out_hidden_size"),
            "vision.n_wa_pattern": computed("u32", _period),
            "vision.window_size": u32("window_size", default=WINDOW),
            "vision.tokens_per_second": f32("tokens_per_second", default=4.0),
        },
        _tensors,
        video_settings=VIDEO_KEYS,
    ),
}
