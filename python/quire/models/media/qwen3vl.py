"""Qwen3-VL (Bai et al. 2025), Qwen3.5 and 3.6: learned position embeddings, and RoPE by row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..._native.graph import concat, slice
from ...checkpoints.mapping import Fields, Source, computed, tensor, u32
from ...errors import LoadError
from ...media import Layout, View
from ...media.pixels import Floats
from ...nn import Keys, LayerNorm, Linear, RopeSpec, Step, Tensor, Weights, activate
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, frame_of, image_processor
from .grids import bilinear_rows, merged_places
from .vit import Block

EPS = 1e-6
FRAMES = 2
THETA = 10000.0


class Merger:
    """``fc2(gelu(fc1(x)))`` of the hidden states of a square of patches."""

    def __init__(self, weights: Weights, names: tuple[str, str], dim: int, n_out: int, norm: LayerNorm | None) -> None:
        self.norm = norm
        self.up = weights.linear(names[0], dim, dim, bias=True)
        self.down = weights.linear(names[1], dim, n_out, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(activate(self.up(x if self.norm is None else self.norm(x)), "gelu"))


class Qwen3Vl(MediaModel):
    pad = "<|image_pad|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, n_layer, patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        self.merge, n_text, n_head = read["spatial_merge_size"], read["projection_dim"], read["attention.head_count"]
        self.patch_dim = 3 * FRAMES * patch_size**2
        if self.dim % (4 * n_head):
            raise LoadError(f"[clip] embedding_length {self.dim} does not divide into {n_head} heads of 4 parts")
        keys.only("vision.attention.layer_norm_epsilon", float(np.float32(EPS)))
        keys.only("use_gelu", True)
        self.processor = image_processor(keys, "Qwen2VLImageProcessor", patch_size, self.merge)
        is_tapped = keys.integers("vision.is_deepstack_layers", n_layer, 0, high=1)
        self.taps = [i for i, tapped in enumerate(is_tapped) if tapped]

        vision = weights.scope("v")
        frames = [vision.dequantized(name, (self.dim, 3, patch_size, patch_size)) for name in FRAME_WEIGHTS]
        kernel = np.stack(frames, axis=2).reshape(self.dim, self.patch_dim)
        self.patch_embedding = Linear(
            vision.computed("patch_embd.rows", kernel), vision.tensor("patch_embd.bias", (self.dim,), vector=True)
        )
        side = int(vision.n_rows("position_embd.weight") ** 0.5)
        self.positions = vision.numbers("position_embd.weight", (side * side, self.dim)).reshape(side, side, self.dim)
        rotation = self.rotation(vision, self.dim // n_head)
        ffn_dim = read["feed_forward_length"]
        self.blocks = [
            Block(block, self.dim, ffn_dim, n_head, eps=EPS, activation="gelu_tanh", rotation=rotation)
            for block in vision.blocks(n_layer)
        ]
        self.norm = vision.layer_norm("post_ln", self.dim, EPS, bias=True)

        merged = self.dim * self.merge**2
        self.mergers = [Merger(weights.scope("mm"), ("0", "2"), merged, n_text, None)]
        for i in self.taps:
            tap = vision.scope(f"deepstack.{i}")
            norm = tap.layer_norm("norm", merged, EPS, bias=True)
            self.mergers.append(Merger(tap, ("fc1", "fc2"), merged, n_text, norm))
        self.n_out = n_text * len(self.mergers)
        self.stages = {
            "encoder": Stage(self.encode, n_layer=n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def rotation(self, weights: Weights, head_dim: int) -> RopeSpec:
        """Return RoPE whose first half of pairs rotates by the row, the second by the column, at the same frequencies.

        RopeSpec has one series of frequencies over all pairs.  With the base squared, its first half is the wanted
        series; the factors rescale the second half to repeat it.
        """
        quarter = head_dim // 4
        factors = np.repeat(np.array([1.0, 1.0 / THETA], np.float32), quarter)
        return RopeSpec(
            n_dims=head_dim, layout="half", freq_base=THETA**2, factors=weights.computed("rope_factors", factors),
            sections=(0, quarter, quarter),
        )  # fmt: skip

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|vision_start|>", sum(layout.n_tokens), "<|vision_end|>"]

    def token_grid(self, layout: Layout) -> tuple[int, int]:
        n_rows, n_cols = layout.views[0]
        return n_rows // self.merge, n_cols // self.merge

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = merged_places(view.n_rows, view.n_cols, self.merge)
        positions = bilinear_rows(self.positions, view.n_rows, view.n_cols)[rows, cols]
        axes = np.stack([np.zeros_like(rows), rows, cols])
        states = run("encoder", np.concatenate([view.patches, positions], axis=1), axes)
        # The patches of a square follow each other.  A token's input is that of the first merger, then of the next.
        squares = states.reshape(-1, self.merge**2, len(self.mergers), self.dim)
        return run("projector", squares.transpose(0, 2, 1, 3).reshape(len(squares), -1))

    def encode(self, step: Step) -> Tensor:
        inputs = step.features(self.patch_dim + self.dim)
        patches = slice(inputs, 0, 0, self.patch_dim)
        x = self.patch_embedding(patches) + slice(inputs, 0, self.patch_dim, self.patch_dim + self.dim)
        kept = []
        for i, block in enumerate(self.blocks):
            x = block(x, step)
            if i in self.taps:
                kept.append(x)
        states = self.norm(x)
        for state in kept:
            states = concat(states, state, 0)
        return states

    def project(self, step: Step) -> Tensor:
        n = self.dim * self.merge**2
        states = step.features(n * len(self.mergers))
        tokens = self.mergers[0](slice(states, 0, 0, n))
        for i, merger in enumerate(self.mergers[1:], 1):
            tokens = concat(tokens, merger(slice(states, 0, i * n, (i + 1) * n)), 0)
        return tokens


MODELS = {"qwen3vl_merger": Qwen3Vl}
SIZES = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "patch_size",
    "spatial_merge_size", "projection_dim",
)  # fmt: skip
FRAME_WEIGHTS = ("patch_embd.weight", "patch_embd.weight.1")

# --- checkpoint ---


def _tapped(config: Fields) -> list[bool]:
    taps = config.items("deepstack_visual_indexes")
    return [i in taps for i in range(config.integer("depth"))]


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    table: dict[str, str | Source] = {
        "v.patch_embd": tensor("visual.patch_embed.proj", change=frame_of(0)),
        "v.patch_embd.weight.1": tensor("visual.patch_embed.proj.weight", change=frame_of(1)),
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


_QWEN = MediaCheckpoint(
    "qwen3vl_merger",
    "vision_config",
    {"visual.": ("model.visual.", "visual.")},
    {
        "use_gelu": computed("bool", lambda config: True),
        "vision.embedding_length": u32("hidden_size"),
        "vision.block_count": u32("depth"),
        "vision.feed_forward_length": u32("intermediate_size"),
        "vision.attention.head_count": u32("num_heads"),
        "vision.attention.layer_norm_epsilon": computed("f32", lambda config: EPS),
        "vision.patch_size": u32("patch_size"),
        "vision.spatial_merge_size": u32("spatial_merge_size"),
        "vision.projection_dim": u32("out_hidden_size"),
        "vision.image_size": computed(
            "u32", lambda config: int(config.integer("num_position_embeddings") ** 0.5) * config.integer("patch_size")
        ),
        "vision.is_deepstack_layers": computed("bool[]", _tapped),
    },
    _tensors,
)
HF = {
    "Qwen3VLForConditionalGeneration": _QWEN,
    "Qwen3VLMoeForConditionalGeneration": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
}
