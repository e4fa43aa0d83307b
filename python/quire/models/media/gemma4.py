"""Gemma 4 (Google 2026): a transformer of patches, whose squares are averaged into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..._native.graph import clamp, concat, glu, slice
from ...checkpoints.mapping import Fields, Source, computed, f32, tensor, u32
from ...checkpoints.mapping.changes import Array
from ...errors import LoadError, RequestError, UnsupportedError
from ...media import Layout, View, open_processor
from ...media.pixels import Floats
from ...nn import Keys, Linear, RopeSpec, Step, Tensor, Weights, rope, unit_norm
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint
from .grids import averaged
from .vit import embedded

MERGE = 3  # patches along each side of the square that becomes a token
THETA = 100.0
LARGEST = float(np.finfo(np.float32).max)


class ClippedLinear:
    """A matrix product whose inputs and outputs are clipped, if the file holds limits."""

    def __init__(self, weights: Weights, name: str, n_in: int, n_out: int) -> None:
        self.linear = weights.linear(name, n_in, n_out)
        self.inputs, self.outputs = (
            (self._limit(weights, f"{name}.{side}_min", -LARGEST), self._limit(weights, f"{name}.{side}_max", LARGEST))
            for side in ("input", "output")
        )

    @staticmethod
    def _limit(weights: Weights, name: str, default: float) -> float:
        if not weights.has(name):
            return default
        return float(np.clip(weights.numbers(name, (1,))[0], -LARGEST, LARGEST))

    def __call__(self, x: Tensor) -> Tensor:
        return self._clipped(self.linear(self._clipped(x, self.inputs)), self.outputs)

    @staticmethod
    def _clipped(x: Tensor, limits: tuple[float, float]) -> Tensor:
        return x if limits == (-LARGEST, LARGEST) else clamp(x, *limits)


class Block:
    """One layer: norms before and after attention and MLP."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int, n_head: int, eps: float) -> None:
        head_dim = weights.n_rows("attn_q.weight") // n_head
        n_kv_head = weights.n_rows("attn_k.weight") // max(head_dim, 1)
        if head_dim % 4 or head_dim == 0 or n_kv_head == 0 or n_head % n_kv_head:
            raise LoadError(f"[clip] {n_head} heads of {head_dim} and {n_kv_head} of keys do not fit each other")
        self.n_head, self.n_kv_head, self.head_dim, self.eps = n_head, n_kv_head, head_dim, eps
        self.q = ClippedLinear(weights, "attn_q", dim, n_head * head_dim)
        self.k = ClippedLinear(weights, "attn_k", dim, n_kv_head * head_dim)
        self.v = ClippedLinear(weights, "attn_v", dim, n_kv_head * head_dim)
        self.o = ClippedLinear(weights, "attn_out", n_head * head_dim, dim)
        self.q_norm, self.k_norm = (weights.norm(f"attn_{name}_norm", head_dim, eps) for name in "qk")
        self.attn_norm, self.attn_post = weights.norm("ln1", dim, eps), weights.norm("attn_post_norm", dim, eps)
        self.mlp_norm, self.mlp_post = weights.norm("ln2", dim, eps), weights.norm("ffn_post_norm", dim, eps)
        self.gate, self.up = (ClippedLinear(weights, f"ffn_{name}", dim, ffn_dim) for name in ("gate", "up"))
        self.down = ClippedLinear(weights, "ffn_down", ffn_dim, dim)
        # The first half of a head's dimensions rotates by the column, the second by the row.
        n, pairs = head_dim // 2, head_dim // 4
        self.rotations = [
            RopeSpec(n_dims=n, layout="half", freq_base=THETA, sections=sections)
            for sections in ((0, pairs, 0), (0, 0, pairs))
        ]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.attn_norm(x)
        q = self.rotated(self.q_norm(self.q(y).heads(self.n_head)), step)
        k = self.rotated(self.k_norm(self.k(y).heads(self.n_kv_head)), step)
        v = unit_norm(self.v(y).heads(self.n_kv_head), self.eps)
        x = x + self.attn_post(self.o(step.attend_both_ways(q, k, v, scale=1.0)))
        y = self.mlp_norm(x)
        return x + self.mlp_post(self.down(glu(self.gate(y), self.up(y), "gelu_tanh")))

    def rotated(self, heads: Tensor, step: Step) -> Tensor:
        n = self.head_dim // 2
        first, second = (
            rope(slice(heads, 0, i * n, (i + 1) * n), step.positions, rotation)
            for i, rotation in enumerate(self.rotations)
        )
        return concat(first, second, 0)


class Gemma4(MediaModel):
    pad = "<|image|>"
    template_text = "<|image|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, n_layer, self.n_out = read["embedding_length"], read["block_count"], read["projection_dim"]
        self.eps = keys.number("vision.attention.layer_norm_epsilon")
        keys.only("use_gelu", True)
        self.merge = merge_of(keys)
        patch_size = read["patch_size"]
        self.patch_dim = 3 * patch_size**2
        self.processor = open_processor(settings(keys, patch_size, self.merge), patch_size=patch_size, merge=self.merge)

        vision, projector = weights.scope("v"), weights.scope("mm")
        kernel = vision.dequantized("patch_embd.weight", (self.dim, 3, patch_size, patch_size))
        rows = kernel.transpose(0, 2, 3, 1).reshape(self.dim, self.patch_dim)
        self.patch_embedding = Linear(vision.computed("patch_embd.rows", rows))
        # By column, then by row.
        self.positions = vision.numbers("position_embd.weight", (2, vision.n_columns("position_embd.weight"), self.dim))
        ffn_dim, n_head = read["feed_forward_length"], read["attention.head_count"]
        self.blocks = [Block(block, self.dim, ffn_dim, n_head, self.eps) for block in vision.blocks(n_layer)]
        self.offset, self.factor = np.zeros(self.dim, np.float32), np.ones(self.dim, np.float32)
        if vision.has("std_scale"):
            self.offset = vision.numbers("std_bias", (self.dim,))
            self.factor = vision.numbers("std_scale", (self.dim,))
        self.projection = ClippedLinear(projector, "input_projection", self.dim, self.n_out)
        self.stages = {
            "encoder": Stage(self.encode, n_layer=n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|image>", sum(layout.n_tokens), "<image|>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = places_of(view, self.positions.shape[1])
        patches = (view.patches - np.float32(0.5)) * np.float32(2)
        inputs = np.concatenate([patches, self.positions[0, cols] + self.positions[1, rows]], axis=1)
        states = run("encoder", inputs, np.stack([np.zeros_like(rows), cols, rows]))
        tokens = averaged(states, view.n_rows, view.n_cols, self.merge) * np.float32(self.dim**0.5)
        return run("projector", (tokens - self.offset) * self.factor)

    def encode(self, step: Step) -> Tensor:
        x = embedded(step, self.patch_embedding, self.patch_dim, self.dim)
        return step.run_layers(self.blocks, x)

    def project(self, step: Step) -> Tensor:
        return self.projection(unit_norm(step.features(self.dim), self.eps))


def merge_of(keys: Keys) -> int:
    name = "vision.projector.scale_factor"
    return keys.integer(name, low=1, high=64) if keys.has(name) else MERGE


def settings(keys: Keys, patch_size: int, merge: int) -> dict[str, object]:
    """Return the settings of the image processor.  A limit of pixels stands for its budget of tokens."""
    found: dict[str, object] = {"image_processor_type": "Gemma4ImageProcessor"}
    for name in ("image_mean", "image_std"):
        if keys.has(f"vision.{name}"):
            found |= {name: keys.numbers(f"vision.{name}", 3), "do_normalize": True}
    if keys.has("vision.image_max_pixels"):
        found["max_soft_tokens"] = keys.integer("vision.image_max_pixels", low=1) // (patch_size * merge) ** 2
    return found


def places_of(view: View, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the column of each patch, which must be less than ``n``."""
    if max(view.n_rows, view.n_cols) > n:
        raise RequestError(f"the image has {view.n_rows} rows of {view.n_cols} patches: at most {n} fit")
    rows, cols = np.mgrid[0 : view.n_rows, 0 : view.n_cols].astype(np.int32).reshape(2, -1)
    return rows, cols


MODELS = {"gemma4v": Gemma4}
SIZES = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "patch_size", "projection_dim",
)  # fmt: skip

# --- checkpoint ---

_LAYER = "vision_tower.encoder.layers.{i}"
_LINEARS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_NORMS = {
    "ln1": "input_layernorm", "attn_post_norm": "post_attention_layernorm", "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip


def merge_key(config: Fields) -> int | None:
    """Return the side of the squares that are averaged, or None for the usual one, which is not written."""
    merge = config.integer("pooling_kernel_size", MERGE)
    return None if merge == MERGE else merge


def max_pixels(processor: Fields) -> int | None:
    """Return the pixels that the budget of tokens stands for, or None for the usual one."""
    if not processor.has("max_soft_tokens"):
        return None
    side = processor.integer("patch_size", 16) * processor.integer("pooling_kernel_size", MERGE)
    return processor.integer("max_soft_tokens") * side**2


def text_width(model: Fields) -> int:
    """Return the width of the text model, whose embeddings for every layer are those of token 0 in place of images."""
    text = model.inner("text_config")
    if text.integer("pad_token_id", 0) != 0 and text.integer("hidden_size_per_layer_input", 256):
        raise UnsupportedError(f"[convert] unsupported 'pad_token_id': {text.integer('pad_token_id')} (expected 0)")
    return text.integer("hidden_size", 2304)


def _as_kernel(x: Array, config: Fields) -> Array:
    """Turn rows of patches, color by color of each pixel, into the kernel of a convolution."""
    side = config.integer("patch_size", 16)
    return np.ascontiguousarray(x.reshape(len(x), side, side, 3).transpose(0, 3, 1, 2))


def as_vector(x: Array, config: Fields) -> Array:
    return x.reshape(1)


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    vision = model.inner("vision_config")
    table: dict[str, str | Source] = {
        "v.patch_embd.weight": tensor("vision_tower.patch_embedder.input_proj.weight", change=_as_kernel),
        "v.position_embd.weight": "vision_tower.patch_embedder.position_embedding_table",
        "mm.input_projection": "embed_vision.embedding_projection",
    }
    if vision.flag("standardize", False):
        table |= {f"v.{name}": f"vision_tower.{name}" for name in ("std_bias", "std_scale")}
    table |= {f"v.blk.{{i}}.{ours}": f"{_LAYER}.{theirs}" for ours, theirs in _NORMS.items()}
    return table | clipped_linears("v", _LAYER, _LINEARS, has_limits=vision.flag("use_clipped_linears", False))


def clipped_linears(
    prefix: str, layer: str, linears: Mapping[str, str], *, has_limits: bool
) -> dict[str, str | Source]:
    """Return the tensors of a layer's matrices, by both names, with the limits of their inputs and outputs."""
    table: dict[str, str | Source] = {}
    for ours, theirs in linears.items():
        table[f"{prefix}.blk.{{i}}.{ours}.weight"] = f"{layer}.{theirs}.linear.weight"
        for limit in ("input_min", "input_max", "output_min", "output_max") if has_limits else ():
            table[f"{prefix}.blk.{{i}}.{ours}.{limit}"] = tensor(f"{layer}.{theirs}.{limit}", change=as_vector)
    return table


HF = {
    "Gemma4ForConditionalGeneration": MediaCheckpoint(
        "gemma4v",
        "vision_config",
        {
            "vision_tower.": ("model.vision_tower.", "vision_tower."),
            "embed_vision.": ("model.embed_vision.", "embed_vision."),
        },
        {
            "use_gelu": computed("bool", lambda config: True),
            "vision.embedding_length": u32("hidden_size", default=768),
            "vision.block_count": u32("num_hidden_layers", default=16),
            "vision.feed_forward_length": u32("intermediate_size", default=3072),
            "vision.attention.head_count": u32("num_attention_heads", default=12),
            "vision.attention.layer_norm_epsilon": f32("rms_norm_eps", default=1e-6),
            "vision.patch_size": u32("patch_size", default=16),
            "vision.image_size": computed("u32", lambda config: 224),  # llama.cpp wants one, and does not use it
            "vision.projector.scale_factor": computed("u32", merge_key),
        },
        _tensors,
        whole_keys={"vision.projection_dim": computed("u32", text_width)},
        settings={"vision.image_max_pixels": computed("u32", max_pixels)},
        limits_pixels=False,
    )
}
