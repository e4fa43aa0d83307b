"""LLaVA 1.5 and 1.6 (Liu et al. 2023, 2024): CLIP's hidden states before its last layer, one token for each patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..._native.graph import quick_gelu
from ...checkpoints.mapping import Fields, Source, computed, f32, u32
from ...errors import LoadError, UnsupportedError
from ...media import Layout, View
from ...media.pixels import Floats
from ...media.processors.llava_next import GRIDS
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, edge_of, image_processor, is_gelu, layer_tensors, text_width
from .vit import Projector, VisionTransformer


class Llava(MediaModel):
    pad = "<image>"
    template_text = "<image>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.encoder = vision = VisionTransformer(keys, weights.scope("v"), gelu="gelu", other=quick_gelu)
        keys.without_effect("vision.projection_dim")  # older files hold CLIP's own
        keys.without_effect("vision.mm_patch_merge_type", "vision.mm_projector_type", "vision.image_aspect_ratio")
        keys.without_effect("vision.image_crop_resolution", "vision.image_split_resolution")
        if keys.has("vision.feature_layer") and keys.some_integers("vision.feature_layer") != [vision.n_layer]:
            raise UnsupportedError("[clip] unsupported 'clip.vision.feature_layer': expected the last of the file")
        side = keys.integer("vision.image_size", low=1, high=8192)
        if vision.class_row is None or (side // vision.patch_size) ** 2 != len(vision.positions):
            raise LoadError(
                f"[clip] image_size {side}, patch_size {vision.patch_size} and {len(vision.positions)} positions "
                "do not fit together"
            )
        settings: dict[str, object] = {
            "size": {"shortest_edge": keys.integer("vision.preproc_image_size", side, low=1, high=8192)},
            "crop_size": {"height": side, "width": side},
        }
        self.patch_dim, self.n_out = vision.patch_dim, weights.n_rows("mm.2.weight")
        # LLaVA 1.6 ends each row of patches of its tiles with these numbers.
        self.newline: Floats | None = None
        name = "CLIPImageProcessor"
        if keys.has("vision.image_grid_pinpoints"):
            name = "LlavaNextImageProcessor"
            widths = keys.some_integers("vision.image_grid_pinpoints", low=1, high=8192)
            settings["image_grid_pinpoints"] = list(zip(widths[1::2], widths[::2], strict=False))
            newline = "v.image_newline" if weights.has("v.image_newline") else "model.image_newline"
            self.newline = weights.numbers(newline, (self.n_out,))
        self.processor = image_processor(keys, name, vision.patch_size, 1, settings)
        self.projector = Projector(weights.scope("mm"), ("0", "2"), vision.dim, self.n_out, self.n_out)
        self.stages = {
            "encoder": Stage(vision.encode, n_layer=vision.n_layer, more_rows=1),
            "projector": Stage(self.project),
        }

    def rows(self, view: View, run: RunStage) -> Floats:
        states = run("encoder", self.encoder.features(view.patches, self.encoder.positions))
        return run("projector", states[1:])

    def assembled(self, rows: Sequence[Floats], layout: Layout) -> Floats:
        if self.newline is None:
            return super().assembled(rows, layout)
        whole, tiles = rows[0], np.stack(rows[1:])
        n_rows, n_cols = layout.views[0]
        split = tiles.reshape(layout.tile_rows, layout.tile_cols, n_rows, n_cols, -1).transpose(0, 2, 1, 3, 4)
        grid = split.reshape(layout.tile_rows * n_rows, layout.tile_cols * n_cols, -1)
        top, left = ((n - kept) // 2 for n, kept in zip(grid.shape, layout.kept, strict=False))
        grid = grid[top : top + layout.kept[0], left : left + layout.kept[1]]
        ends = np.broadcast_to(self.newline, (len(grid), 1, self.n_out))
        return np.concatenate([whole, np.concatenate([grid, ends], axis=1).reshape(-1, self.n_out)])

    def project(self, step: Step) -> Tensor:
        return self.projector(step.features(self.encoder.dim))


MODELS = {"mlp": Llava}

# --- checkpoint ---

_LAYER = "vision_tower.encoder.layers.{i}."


def _n_layer(whole: Fields) -> int:
    """Return the number of layers up to the one whose output is used."""
    n_layer = whole.inner("vision_config").integer("num_hidden_layers", 12)
    layer, strategy = whole.value("vision_feature_layer"), whole.text("vision_feature_select_strategy", "default")
    layer = -2 if layer is None else layer
    if not isinstance(layer, int) or not -n_layer <= layer <= n_layer or layer == 0 or strategy != "default":
        raise UnsupportedError(f"[convert] unsupported 'vision_feature_layer': {layer!r:.40}, {strategy:.40}")
    return layer if layer > 0 else n_layer + 1 + layer


def _tensors(config: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": "vision_tower.embeddings.patch_embedding",
        "v.class_embd": "vision_tower.embeddings.class_embedding",
        "v.position_embd": "vision_tower.embeddings.position_embedding",
        "v.pre_ln": "vision_tower.pre_layrnorm",
        **layer_tensors(_LAYER),
        "mm.0": "multi_modal_projector.linear_1",
        "mm.2": "multi_modal_projector.linear_2",
    }


def _unused(whole: Fields) -> tuple[str, ...]:
    n = whole.inner("vision_config").integer("num_hidden_layers", 12)
    later = (f"encoder.layers.{i}.*" for i in range(_n_layer(whole), n))
    return ("post_layernorm.*", "embeddings.position_ids", *later)


def _grids(whole: Fields) -> list[int]:
    """Return the width and height of each grid of tiles; config.json has the height first."""
    found = whole.value("image_grid_pinpoints") or GRIDS
    if not isinstance(found, (list, tuple)) or not all(
        isinstance(grid, (list, tuple)) and len(grid) == 2 for grid in found
    ):
        raise UnsupportedError(f"[convert] unsupported 'image_grid_pinpoints': {found!r:.60}")
    return [int(edge) for height, width in found for edge in (width, height)]


_TOWERS = ("model.vision_tower.vision_model.", "vision_tower.vision_model.", "model.vision_tower.", "vision_tower.")
_LLAVA = MediaCheckpoint(
    "mlp",
    "vision_config",
    {
        "vision_tower.": _TOWERS,
        "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
    },
    {
        "use_gelu": computed("bool", is_gelu),
        "vision.embedding_length": u32("hidden_size", default=768),
        "vision.feed_forward_length": u32("intermediate_size", default=3072),
        "vision.attention.head_count": u32("num_attention_heads", default=12),
        "vision.attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
        "vision.patch_size": u32("patch_size", default=32),
    },
    _tensors,
    whole_keys={
        "vision.projection_dim": text_width,
        "vision.block_count": computed("u32", _n_layer),
        # Without it, llama.cpp leaves out one layer more.
        "vision.feature_layer": computed("i32[]", lambda whole: [_n_layer(whole)]),
    },
    settings={
        "vision.image_size": edge_of("crop_size", "height", 224),
        "vision.preproc_image_size": edge_of("size", "shortest_edge", 224),
    },
    limits_pixels=False,
    fixed={"resample": 3, "do_center_crop": True, "do_pad": False},
    unused=_unused,
    model_type="clip_vision_model",
)
_NEXT = replace(
    _LLAVA,
    roots={**_LLAVA.roots, "image_newline": ("model.image_newline", "image_newline")},
    tensors=lambda config: {**_tensors(config), "v.image_newline": "image_newline"},
    whole_keys={
        **_LLAVA.whole_keys,
        "vision.image_grid_pinpoints": computed("i32[]", _grids),
        "vision.mm_patch_merge_type": computed("string", lambda whole: "spatial_unpad"),
    },
    fixed={"resample": 3, "do_center_crop": True},
)
HF = {"LlavaForConditionalGeneration": _LLAVA, "LlavaNextForConditionalGeneration": _NEXT}
