"""GLM-4.1V, 4.5V and 4.6V (GLM team 2025), GLM-OCR (2026): a convolution merges patches into tokens."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

import numpy as np

from ..._native.graph import slice
from ...checkpoints.mapping import Fields, Key, Source, computed, f32, u32
from ...errors import LoadError, UnsupportedError
from ...media import ImageProcessor, View
from ...media.pixels import Floats
from ...nn import Keys, Linear, Step, Tensor, Weights, activate, glu
from .base import RunStage, Stage
from .checkpoint import MediaCheckpoint, image_processor
from .grids import centred_rows, merged_places
from .qwen_vl import FRAME_TENSORS, FRAMES, SIZE_KEYS, QwenVl
from .vit import Block, ffn_width

# The processor's limits are in pixels of all frames, the keys' in pixels of the image.
LIMITS = {
    "shortest_edge": ("vision.image_min_pixels", 112 * 112 // FRAMES),
    "longest_edge": ("vision.image_max_pixels", 9633792 // FRAMES),
}


class Merger:
    """``down(silu(gate(y)) * up(y))`` of ``y = gelu(norm(fc(x)))``."""

    def __init__(self, weights: Weights, dim: int) -> None:
        self.fc = weights.linear("model.fc", dim, dim)
        self.norm = weights.layer_norm("post_norm", dim, 1e-5)
        n_hidden = weights.n_rows("up.weight")
        self.gate, self.up = (weights.linear(name, dim, n_hidden, bias=None) for name in ("gate", "up"))
        self.down = weights.linear("down", n_hidden, dim, bias=None)

    def __call__(self, x: Tensor) -> Tensor:
        y = activate(self.norm(self.fc(x)), "gelu")
        return self.down(glu(self.gate(y), self.up(y), "silu"))


class Glm4V(QwenVl):
    """With learned positions, embedded patches are normed before these are added.  GLM-OCR has neither."""

    pad = "<|image|>"
    around = ("<|begin_of_image|>", "<|end_of_image|>")
    FIXED_EPS = False
    video_pad = ""

    def __init__(self, keys: Keys, weights: Weights) -> None:
        super().__init__(keys, weights)
        eps = keys.number("vision.attention.layer_norm_epsilon")
        keys.only("use_silu", True)
        keys.only("use_gelu", False)
        keys.without_effect("vision.feed_forward_length")  # GLM-4V's is that of the merger
        vision, projector = weights.scope("v"), weights.scope("mm")
        self.positions: Floats | None = None
        if vision.has("position_embd.weight"):
            n_places = vision.n_rows("position_embd.weight")
            if (side := isqrt(n_places)) ** 2 != n_places:
                raise LoadError(f"[clip] {n_places} position embeddings are not a square grid")
            self.positions = vision.numbers("position_embd.weight", (n_places, self.dim)).reshape(side, side, self.dim)
        self.first_norm = vision.norm("norm_embd", self.dim, eps) if vision.has("norm_embd.weight") else None
        ffn_dim = ffn_width(vision, self.dim)
        self.blocks = [
            Block(
                block, self.dim, ffn_dim, self.n_head, eps=eps, activation="silu", rotation=self.rotation, is_rms=True
            )
            for block in vision.blocks(self.n_layer)
        ]
        self.norm = vision.norm("post_ln", self.dim, eps)
        kernel = projector.dequantized("patch_merger.weight", (self.n_text, self.dim, self.merge, self.merge))
        self.merged = self.dim * self.merge**2
        self.convolution = Linear(
            projector.computed("patch_merger.rows", kernel.transpose(0, 2, 3, 1).reshape(self.n_text, self.merged)),
            projector.tensor("patch_merger.bias", (self.n_text,), vector=True),
        )
        self.merger = Merger(projector, self.n_text)
        self.n_out = self.n_text
        self.stages = {
            "encoder": Stage(self.encode, n_layer=self.n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def open_processor(self, keys: Keys) -> ImageProcessor:
        size = {
            edge: FRAMES * keys.integer(name, default, low=1, high=1 << 29) for edge, (name, default) in LIMITS.items()
        }
        return image_processor(keys, "Glm4vImageProcessor", self.patch_size, self.merge, {"size": size})

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = merged_places(view.n_rows, view.n_cols, self.merge)
        inputs = view.patches
        if self.positions is not None:
            positions = centred_rows(self.positions, view.n_rows, view.n_cols, is_cubic=True)[rows, cols]
            inputs = np.concatenate([inputs, positions], axis=1)
        states = run("encoder", inputs, np.stack([np.zeros_like(rows), rows, cols]))
        return run("projector", states.reshape(-1, self.merged))

    def encode(self, step: Step) -> Tensor:
        inputs = step.features(self.patch_dim + (0 if self.positions is None else self.dim))
        x = self.patch_embedding(slice(inputs, 0, 0, self.patch_dim))
        if self.first_norm is not None:
            x = self.first_norm(x)
        if self.positions is not None:
            x = x + slice(inputs, 0, self.patch_dim, self.patch_dim + self.dim)
        return self.norm(step.run_layers(self.blocks, x))

    def project(self, step: Step) -> Tensor:
        return self.merger(self.convolution(step.features(self.merged)))


MODELS = {"glm4v": Glm4V}

# --- checkpoint ---


def _is_silu(config: Fields) -> bool:
    if (found := config.text("hidden_act", "silu")) != "silu":
        raise UnsupportedError(f"[convert] unsupported 'hidden_act' of the encoder: '{found:.40}'")
    return True


def _limit(edge: str) -> Key:
    default = FRAMES * LIMITS[edge][1]
    return computed("u32", lambda settings: settings.inner("size").integer(edge, default, low=FRAMES) // FRAMES)


_BLOCK, _MERGER = "visual.blocks.{i}.", "visual.merger."
_TENSORS: dict[str, str | Source] = {
    **FRAME_TENSORS,
    "v.norm_embd": "visual.post_conv_layernorm",
    "v.position_embd": "visual.embeddings.position_embedding",
    "v.blk.{i}.ln1": f"{_BLOCK}norm1",
    "v.blk.{i}.ln2": f"{_BLOCK}norm2",
    "v.blk.{i}.attn_qkv": f"{_BLOCK}attn.qkv",
    "v.blk.{i}.attn_q_norm": f"{_BLOCK}attn.q_norm",
    "v.blk.{i}.attn_k_norm": f"{_BLOCK}attn.k_norm",
    "v.blk.{i}.attn_out": f"{_BLOCK}attn.proj",
    "v.blk.{i}.ffn_gate": f"{_BLOCK}mlp.gate_proj",
    "v.blk.{i}.ffn_up": f"{_BLOCK}mlp.up_proj",
    "v.blk.{i}.ffn_down": f"{_BLOCK}mlp.down_proj",
    "v.post_ln": "visual.post_layernorm",
    "mm.patch_merger": "visual.downsample",
    "mm.model.fc": f"{_MERGER}proj",
    "mm.post_norm": f"{_MERGER}post_projection_norm",
    "mm.gate": f"{_MERGER}gate_proj",
    "mm.up": f"{_MERGER}up_proj",
    "mm.down": f"{_MERGER}down_proj",
}


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    return _TENSORS


_GLM = MediaCheckpoint(
    "glm4v",
    "vision_config",
    {"visual.": ("model.visual.", "visual.")},
    {
        **SIZE_KEYS,
        "use_silu": computed("bool", _is_silu),
        "vision.attention.layer_norm_epsilon": f32("rms_norm_eps", default=1e-5),
        "vision.embedding_length": u32("hidden_size"),
        "vision.feed_forward_length": u32("intermediate_size"),
        "vision.projection_dim": u32("out_hidden_size"),
        "vision.image_size": u32("image_size", default=336),
    },
    _tensors,
    settings={name: _limit(edge) for edge, (name, _) in LIMITS.items()},
    limits_pixels=False,
)
HF = {
    "Glm4vForConditionalGeneration": _GLM,
    "Glm4vMoeForConditionalGeneration": _GLM,
    "Glm46VForConditionalGeneration": _GLM,
    "GlmOcrForConditionalGeneration": _GLM,
}
