"""Kimi K2.5 and K2.6 (Moonshot AI 2026): MoonViT, with learned positions and RoPE by row and column."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...checkpoints.mapping import Array, Fields, Key, Source, computed, tensor, u32
from ...errors import LoadError, UnsupportedError
from ...media import View
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, activation_key, image_processor, text_width
from .grids import centred_rows, merged_places, merged_rows
from .vit import Block, Projector, axial_rope, embedded, patch_embedding

EPS = 1e-5
MIN_PATCHES, MAX_PATCHES = 8, 16384  # llama.cpp's and the processor's
SIZES = (
    "embedding_length", "block_count", "attention.head_count", "patch_size", "projection_dim", "feed_forward_length",
)  # fmt: skip


class KimiK25(MediaModel):
    pad = "<|media_pad|>"
    template_text = "<|media_pad|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, n_layer, patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        n_head, self.n_out = read["attention.head_count"], read["projection_dim"]
        self.merge = keys.integer("vision.projector.scale_factor", 2, low=1, high=64)
        eps = keys.number("vision.attention.layer_norm_epsilon", EPS)
        keys.only("use_gelu", True)
        keys.without_effect("vision.image_min_pixels", "vision.pos_emb_time")  # images are not enlarged
        most = keys.integer("vision.image_max_pixels", MAX_PATCHES * patch_size**2, low=patch_size**2)
        settings = {"max_patches": most // patch_size**2}
        self.processor = image_processor(keys, "Kimi_K25ImageProcessor", patch_size, self.merge, settings)
        self.patch_dim = 3 * patch_size**2

        vision, projector = weights.scope("v"), weights.scope("mm")
        self.patch_embedding = patch_embedding(vision, self.dim, patch_size)
        shape = vision.shape("position_embd.weight")
        if self.dim % (4 * n_head) or len(shape) != 3 or shape[0] != shape[1]:
            raise LoadError(f"[clip] {n_head} heads of 4 parts and positions of shape {shape} do not fit {self.dim}")
        keys.only("vision.pos_emb_height", shape[0])
        keys.only("vision.pos_emb_width", shape[0])
        self.positions = vision.numbers("position_embd.weight", (shape[0], shape[0], self.dim))
        rotation = axial_rope(vision, self.dim // n_head)
        self.blocks = [
            Block(
                block, self.dim, read["feed_forward_length"], n_head, eps=eps, activation="gelu_tanh",
                rotation=rotation, is_paired=True,
            )
            for block in vision.blocks(n_layer)
        ]  # fmt: skip
        self.norm = vision.layer_norm("post_ln", self.dim, eps, bias=True)
        self.last_norm = projector.layer_norm("input_norm", self.dim, eps, bias=True)
        self.merged = self.dim * self.merge**2
        self.projector = Projector(projector, ("1", "2"), self.merged, self.merged, self.n_out)
        self.stages = {
            "encoder": Stage(self.encode, n_layer=n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = merged_places(view.n_rows, view.n_cols, 1)
        positions = centred_rows(self.positions, view.n_rows, view.n_cols, is_cubic=True).reshape(-1, self.dim)
        # The first half of pairs rotates by the column.
        axes = np.stack([np.zeros_like(cols), cols, rows])
        states = run("encoder", np.concatenate([view.patches, positions], axis=1), axes)
        return run("projector", merged_rows(states, view.n_rows, view.n_cols, self.merge))

    def encode(self, step: Step) -> Tensor:
        x = embedded(step, self.patch_embedding, self.patch_dim, self.dim)
        return self.last_norm(self.norm(step.run_layers(self.blocks, x)))

    def project(self, step: Step) -> Tensor:
        return self.projector(step.features(self.merged))


MODELS = {"kimik25": KimiK25}

# --- checkpoint ---

_LAYER = "vision_tower.encoder.blocks.{i}."


def _integer(config: Fields, name: str, default: int) -> int:
    """Return a size, which Moonshot AI's configurations call otherwise than transformers'."""
    names = (name, f"vt_{name}", f"init_{name}")
    return config.integer(next((each for each in names if config.has(each)), name), default, low=1)


def _size(name: str, default: int) -> Key:
    return computed("u32", lambda config: _integer(config, name, default))


def _most_pixels(settings: Fields) -> int:
    inner = settings.inner("media_proc_cfg") if settings.has("media_proc_cfg") else settings
    n_patches = inner.integer("in_patch_limit" if inner.has("in_patch_limit") else "max_patches", MAX_PATCHES, low=1)
    return n_patches * inner.integer("patch_size", 14, low=1) ** 2


def _by_axis(x: Array, config: Fields) -> Array:
    """Order the pairs of q and k, which alternate between columns and rows, by the axis."""
    n_head = _integer(config, "num_attention_heads", 16)
    parts = x.reshape(3, n_head, -1, 2, 2, *x.shape[1:])
    ordered = np.concatenate([parts[:2].swapaxes(2, 3).reshape(2, -1), parts[2:].reshape(1, -1)])
    return ordered.reshape(x.shape)


def _tensors(config: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": "vision_tower.patch_embed.proj",
        "v.position_embd.weight": "vision_tower.patch_embed.pos_emb.weight",
        "v.blk.{i}.ln1": f"{_LAYER}norm0",
        "v.blk.{i}.ln2": f"{_LAYER}norm1",
        "v.blk.{i}.attn_qkv": tensor(f"{_LAYER}wqkv", change=_by_axis),
        "v.blk.{i}.attn_out": f"{_LAYER}wo",
        "v.blk.{i}.ffn_up": f"{_LAYER}mlp.fc0",
        "v.blk.{i}.ffn_down": f"{_LAYER}mlp.fc1",
        "v.post_ln": "vision_tower.encoder.final_layernorm",
        "mm.input_norm": "mm_projector.pre_norm",
        "mm.1": "mm_projector.proj.0",
        "mm.2": "mm_projector.proj.2",
    }


def _eps(whole: Fields) -> float:
    if (
        found := whole.number("projection_layer_norm_eps", whole.inner("vision_config").number("projector_ln_eps", EPS))
    ) != EPS:
        raise UnsupportedError(f"[convert] unsupported 'projection_layer_norm_eps': {found} (expected {EPS})")
    return EPS


def _merge(config: Fields) -> int:
    rows, cols = config.items("merge_kernel_size") or [2, 2]
    if rows != cols or not isinstance(rows, int):
        raise UnsupportedError(f"[convert] unsupported 'merge_kernel_size': {rows}x{cols} (expected a square)")
    return rows


_KIMI = MediaCheckpoint(
    "kimik25",
    "vision_config",
    {"vision_tower.": ("vision_tower.",), "mm_projector.": ("mm_projector.",)},
    {
        "use_gelu": activation_key("gelu_pytorch_tanh"),
        "vision.embedding_length": _size("hidden_size", 1152),
        "vision.block_count": _size("num_hidden_layers", 27),
        "vision.feed_forward_length": _size("intermediate_size", 4304),
        "vision.attention.head_count": _size("num_attention_heads", 16),
        "vision.patch_size": u32("patch_size", default=14),
        "vision.image_size": computed(
            "u32", lambda config: _integer(config, "pos_emb_height", 64) * config.integer("patch_size", 14)
        ),
        "vision.projector.scale_factor": computed("u32", _merge),
        "vision.pos_emb_height": _size("pos_emb_height", 64),
        "vision.pos_emb_width": _size("pos_emb_width", 64),
        "vision.pos_emb_time": _size("pos_emb_time", 4),
        "vision.image_min_pixels": computed("u32", lambda config: MIN_PATCHES * config.integer("patch_size", 14) ** 2),
    },
    _tensors,
    whole_keys={"vision.projection_dim": text_width, "vision.attention.layer_norm_epsilon": computed("f32", _eps)},
    settings={
        "vision.image_max_pixels": computed("u32", _most_pixels),
    },
    limits_pixels=False,
    fixed={"resample": 3},
    unused=("pos_emb.time_weight",),
)
HF = {"KimiK25ForConditionalGeneration": _KIMI, "Kimi_K25ForConditionalGeneration": _KIMI}
