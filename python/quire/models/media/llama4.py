"""Llama 4 (Meta 2025): a vision transformer with positions and RoPE over tiles and the whole image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...checkpoints.mapping import Fields, Source, computed, u32
from ...checkpoints.mapping.rope import theta_of
from ...errors import LoadError, UnsupportedError
from ...media import Layout, View
from ...media.pixels import Floats
from ...nn import Keys, Linear, Step, Tensor, Weights, activate
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, activation_key, image_processor, text_width
from .grids import merged_places, merged_rows
from .vit import Block, axial_rope, embedded

EPS, THETA = 1e-5, 10000.0  # transformers reads neither from the configuration of published checkpoints
SIZES = (
    "embedding_length", "block_count", "attention.head_count", "patch_size", "projection_dim", "feed_forward_length",
    "image_size",
)  # fmt: skip


class Llama4(MediaModel):
    pad = "<|patch|>"
    template_text = "<|image|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, n_layer, patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        n_head, self.n_out, tile = read["attention.head_count"], read["projection_dim"], read["image_size"]
        self.merge = keys.integer("vision.projector.scale_factor", 2, low=1, high=64)
        if self.dim % (4 * n_head) or tile % (patch_size * self.merge):
            raise LoadError(
                f"[clip] embedding_length {self.dim} and {n_head} heads of 4 parts, or image_size {tile} and tokens "
                f"of {patch_size * self.merge} pixels, do not fit together"
            )
        eps = keys.number("vision.attention.layer_norm_epsilon", EPS)
        keys.only("use_gelu", True)
        settings = {
            "size": {"height": tile, "width": tile},
            "max_patches": keys.integer("vision.preproc_max_tiles", 16, low=1, high=256),
        }
        self.processor = image_processor(keys, "Llama4ImageProcessor", patch_size, self.merge, settings)
        self.patch_dim = 3 * patch_size**2

        vision = weights.scope("v")
        shape = vision.shape("patch_embd.weight")
        wanted = (self.dim, self.patch_dim) if len(shape) == 2 else (self.dim, 3, patch_size, patch_size)
        kernel = vision.dequantized("patch_embd.weight", wanted).reshape(self.dim, self.patch_dim)
        self.patch_embedding = Linear(vision.computed("patch_embd.rows", kernel))
        # The class token's position is the last.
        places = vision.numbers("position_embd.weight", ((tile // patch_size) ** 2 + 1, self.dim))
        self.positions, self.class_row = places[:-1], places[-1] + vision.numbers("class_embd", (self.dim,))
        self.first_norm = vision.layer_norm("pre_ln", self.dim, eps, bias=True)
        rotation = axial_rope(vision, self.dim // n_head, THETA)
        self.blocks = [
            Block(
                block, self.dim, read["feed_forward_length"], n_head, eps=eps, activation="gelu", rotation=rotation,
                is_paired=True,
            )
            for block in vision.blocks(n_layer)
        ]  # fmt: skip
        self.norm = vision.layer_norm("post_ln", self.dim, eps, bias=True)
        projector, self.merged = weights.scope("mm.model"), self.dim * self.merge**2
        n_hidden, n_adapted = projector.n_rows("mlp.1.weight"), projector.n_rows("mlp.2.weight")
        self.up = projector.linear("mlp.1", self.merged, n_hidden)
        self.down = projector.linear("mlp.2", n_hidden, n_adapted)
        self.projection = projector.linear("fc", n_adapted, self.n_out)
        self.stages = {
            "encoder": Stage(self.encode, n_layer=n_layer, more_rows=1),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        parts: list[str | int] = ["<|image_start|>"]
        for _ in range(layout.tile_rows):
            parts += [layout.n_tokens[0], "<|tile_x_separator|>"] * layout.tile_cols
            parts[-1] = "<|tile_y_separator|>"
        return [*parts, "<|image|>", layout.n_tokens[-1], "<|image_end|>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        inputs = np.concatenate([view.patches, self.positions], axis=1)
        last = np.concatenate([np.zeros(self.patch_dim, np.float32), self.class_row])
        rows, cols = merged_places(view.n_rows, view.n_cols, 1)
        # The first half of pairs rotates by the column.  Places count from 1; the class token's is 0.
        axes = np.pad(np.stack([np.zeros_like(cols), cols + 1, rows + 1]), ((0, 0), (0, 1)))
        states = run("encoder", np.concatenate([inputs, last[None]]), axes)
        return run("projector", merged_rows(states[:-1], view.n_rows, view.n_cols, self.merge))

    def encode(self, step: Step) -> Tensor:
        x = self.first_norm(embedded(step, self.patch_embedding, self.patch_dim, self.dim))
        return self.norm(step.run_layers(self.blocks, x))

    def project(self, step: Step) -> Tensor:
        x = activate(self.up(step.features(self.merged)), "gelu")
        return self.projection(activate(self.down(x), "gelu"))


MODELS = {"llama4": Llama4}

# --- checkpoint ---

_LAYER = "vision_model.model.layers.{i}."


def _tensors(config: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": "vision_model.patch_embedding.linear",
        "v.class_embd": "vision_model.class_embedding",
        "v.position_embd.weight": "vision_model.positional_embedding_vlm",
        "v.pre_ln": "vision_model.layernorm_pre",
        "v.blk.{i}.ln1": f"{_LAYER}input_layernorm",
        "v.blk.{i}.ln2": f"{_LAYER}post_attention_layernorm",
        **{f"v.blk.{{i}}.attn_{name}": f"{_LAYER}self_attn.{name}_proj" for name in "qkv"},
        "v.blk.{i}.attn_out": f"{_LAYER}self_attn.o_proj",
        "v.blk.{i}.ffn_up": f"{_LAYER}mlp.fc1",
        "v.blk.{i}.ffn_down": f"{_LAYER}mlp.fc2",
        "v.post_ln": "vision_model.layernorm_post",
        "mm.model.mlp.1": "vision_model.vision_adapter.mlp.fc1",
        "mm.model.mlp.2": "vision_model.vision_adapter.mlp.fc2",
        "mm.model.fc": "multi_modal_projector.linear_1",
    }


def _eps(config: Fields) -> float:
    if (found := theta_of(config)) != THETA:
        raise UnsupportedError(f"[convert] unsupported 'rope_theta' of the encoder: {found} (expected {THETA})")
    return EPS


HF = {
    "Llama4ForConditionalGeneration": MediaCheckpoint(
        "llama4",
        "vision_config",
        {
            "vision_model.": ("model.vision_model.", "vision_model."),
            "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
        },
        {
            "use_gelu": activation_key("gelu"),
            "vision.embedding_length": u32("hidden_size", default=768),
            "vision.block_count": u32("num_hidden_layers", default=34),
            "vision.feed_forward_length": u32("intermediate_size", default=5632),
            "vision.attention.head_count": u32("num_attention_heads", default=16),
            "vision.attention.layer_norm_epsilon": computed("f32", _eps),
            "vision.patch_size": u32("patch_size", default=14),
            "vision.image_size": u32("image_size", default=448),
            "vision.projector.scale_factor": computed(
                "u32", lambda config: int(1 / config.number("pixel_shuffle_ratio", 0.5))
            ),
        },
        _tensors,
        whole_keys={"vision.projection_dim": text_width},
        settings={"vision.preproc_max_tiles": u32("max_patches", default=16)},
        limits_pixels=False,
        fixed={"resample": 2, "resize_to_max_canvas": False},
    )
}
