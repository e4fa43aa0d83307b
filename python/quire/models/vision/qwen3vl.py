"""Qwen3-VL (Bai et al. 2025), Qwen3.5 and 3.6: learned position embeddings, and RoPE by row and column."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..._native.graph import concat, slice
from ...checkpoints.mapping import Fields, Source, computed, tensor, u32
from ...errors import LoadError
from ...media.pixels import Floats
from ...nn import MLP, Keys, LayerNorm, Linear, RopeSpec, Step, Tensor, Weights, activate, rope
from .checkpoint import VisionCheckpoint, frame_of, image_processor
from .grids import bilinear_rows, merged_places

EPS = 1e-6
FRAMES = 2
THETA = 10000.0


class Attention:
    def __init__(self, weights: Weights, dim: int, n_head: int, rotation: RopeSpec) -> None:
        self.n_head, self.scale, self.rotation = n_head, (dim // n_head) ** -0.5, rotation
        self.q, self.k, self.v = weights.linears("attn_qkv", dim, [dim] * 3, bias=True)
        self.o = weights.linear("attn_out", dim, dim, bias=True)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x).heads(self.n_head) for linear in (self.q, self.k, self.v))
        q, k = (rope(heads, step.positions, self.rotation) for heads in (q, k))
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale))


class Block:
    def __init__(self, weights: Weights, dim: int, ffn_dim: int, n_head: int, rotation: RopeSpec) -> None:
        self.attn_norm = weights.layer_norm("ln1", dim, EPS, bias=True)
        self.attention = Attention(weights, dim, n_head, rotation)
        self.mlp_norm = weights.layer_norm("ln2", dim, EPS, bias=True)
        self.mlp = MLP(weights, dim, ffn_dim, "gelu_tanh")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))


class Merger:
    """``fc2(gelu(fc1(x)))`` of the hidden states of a square of patches."""

    def __init__(self, weights: Weights, names: tuple[str, str], dim: int, n_out: int, norm: LayerNorm | None) -> None:
        self.norm = norm
        self.up = weights.linear(names[0], dim, dim, bias=True)
        self.down = weights.linear(names[1], dim, n_out, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(activate(self.up(x if self.norm is None else self.norm(x)), "gelu"))


class Qwen3Vl:
    pad = "<|image_pad|>"
    markup = "<|vision_start|><|image_pad|><|vision_end|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, self.n_layer, self.patch_size = (
            read["embedding_length"], read["block_count"], read["patch_size"]
        )  # fmt: skip
        self.merge, n_text, n_head = read["spatial_merge_size"], read["projection_dim"], read["attention.head_count"]
        self.patch_dim = 3 * FRAMES * self.patch_size**2
        if self.dim % (4 * n_head):
            raise LoadError(f"[clip] embedding_length {self.dim} does not divide into {n_head} heads of 4 parts")
        keys.only("vision.attention.layer_norm_epsilon", float(np.float32(EPS)))
        keys.only("use_gelu", True)
        self.processor = image_processor(keys, "Qwen2VLImageProcessor", self.patch_size, self.merge)
        is_tapped = keys.integers("vision.is_deepstack_layers", self.n_layer, 0, high=1)
        self.taps = [i for i, tapped in enumerate(is_tapped) if tapped]

        vision = weights.scope("v")
        frames = [vision.dequantized(name, (self.dim, 3, self.patch_size, self.patch_size)) for name in FRAME_WEIGHTS]
        kernel = np.stack(frames, axis=2).reshape(self.dim, self.patch_dim)
        self.patch_embedding = Linear(
            vision.computed("patch_embd.rows", kernel), vision.tensor("patch_embd.bias", (self.dim,), vector=True)
        )
        side = int(vision.n_rows("position_embd.weight") ** 0.5)
        self.positions = vision.numbers("position_embd.weight", (side * side, self.dim)).reshape(side, side, self.dim)
        rotation = self.rotation(vision, self.dim // n_head)
        ffn_dim = read["feed_forward_length"]
        self.blocks = [Block(block, self.dim, ffn_dim, n_head, rotation) for block in vision.blocks(self.n_layer)]
        self.norm = vision.layer_norm("post_ln", self.dim, EPS, bias=True)

        merged = self.dim * self.merge**2
        self.mergers = [Merger(weights.scope("mm"), ("0", "2"), merged, n_text, None)]
        for i in self.taps:
            tap = vision.scope(f"deepstack.{i}")
            norm = tap.layer_norm("norm", merged, EPS, bias=True)
            self.mergers.append(Merger(tap, ("fc1", "fc2"), merged, n_text, norm))
        self.n_out = n_text * len(self.mergers)

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

    def inputs(self, patches: Floats, n_rows: int, n_cols: int) -> Floats:
        rows, cols = merged_places(n_rows, n_cols, self.merge)
        positions = bilinear_rows(self.positions, n_rows, n_cols)[rows, cols]
        return np.concatenate([patches, positions], axis=1)

    def encode(self, step: Step) -> Tensor:
        inputs = step.features(self.patch_dim + self.dim)
        patches = slice(inputs, 0, 0, self.patch_dim)
        positions = slice(inputs, 0, self.patch_dim, self.patch_dim + self.dim)
        return self.norm(step.run_layers(self.blocks, self.patch_embedding(patches) + positions))

    def project(self, step: Step) -> Tensor:
        n = self.dim * self.merge**2
        states = step.features(n * len(self.mergers))
        tokens = self.mergers[0](slice(states, 0, 0, n))
        for i, merger in enumerate(self.mergers[1:], 1):
            tokens = concat(tokens, merger(slice(states, 0, i * n, (i + 1) * n)), 0)
        return tokens


MODEL = Qwen3Vl
SIZES = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "patch_size",
    "spatial_merge_size", "projection_dim",
)  # fmt: skip
FRAME_WEIGHTS = ("patch_embd.weight", "patch_embd.weight.1")

# --- checkpoint ---


def _tapped(config: Fields) -> list[bool]:
    taps = config.items("deepstack_visual_indexes")
    return [i in taps for i in range(config.integer("depth"))]


def _tensors(config: Fields) -> Mapping[str, str | Source]:
    table: dict[str, str | Source] = {
        "v.patch_embd": tensor("patch_embed.proj", change=frame_of(0)),
        "v.patch_embd.weight.1": tensor("patch_embed.proj.weight", change=frame_of(1)),
        "v.position_embd": "pos_embed",
        "v.blk.{i}.ln1": "blocks.{i}.norm1",
        "v.blk.{i}.ln2": "blocks.{i}.norm2",
        "v.blk.{i}.attn_qkv": "blocks.{i}.attn.qkv",
        "v.blk.{i}.attn_out": "blocks.{i}.attn.proj",
        "v.blk.{i}.ffn_up": "blocks.{i}.mlp.linear_fc1",
        "v.blk.{i}.ffn_down": "blocks.{i}.mlp.linear_fc2",
        "v.post_ln": "merger.norm",
        "mm.0": "merger.linear_fc1",
        "mm.2": "merger.linear_fc2",
    }
    taps = [i for i, tapped in enumerate(_tapped(config)) if tapped]
    for k, layer in enumerate(taps):
        for ours, theirs in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2")):
            table[f"v.deepstack.{layer}.{ours}"] = f"deepstack_merger_list.{k}.{theirs}"
    return table


_QWEN = VisionCheckpoint(
    "qwen3vl_merger",
    ("model.visual.", "visual."),
    {
        "embedding_length": u32("hidden_size"),
        "block_count": u32("depth"),
        "feed_forward_length": u32("intermediate_size"),
        "attention.head_count": u32("num_heads"),
        "attention.layer_norm_epsilon": computed("f32", lambda config: EPS),
        "patch_size": u32("patch_size"),
        "spatial_merge_size": u32("spatial_merge_size"),
        "projection_dim": u32("out_hidden_size"),
        "image_size": computed(
            "u32", lambda config: int(config.integer("num_position_embeddings") ** 0.5) * config.integer("patch_size")
        ),
        "is_deepstack_layers": computed("bool[]", _tapped),
    },
    {"use_gelu": True},
    _tensors,
)
HF = {
    "Qwen3VLForConditionalGeneration": _QWEN,
    "Qwen3VLMoeForConditionalGeneration": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
}
