"""InternVL 2.5, 3 and 3.5 (Chen et al. 2024, Zhu et al. 2025): InternViT over tiles, then the whole image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...checkpoints.mapping import Fields, Source, computed, f32, squeezed, tensor, u32
from ...errors import LoadError, UnsupportedError
from ...media import Layout, View
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, activation_key, edge_of, image_processor, text_width
from .grids import merged_rows
from .vit import Projector, VisionTransformer

NORM_EPS = 1e-5


class InternVl(MediaModel):
    pad = "<IMG_CONTEXT>"
    template_text = "<IMG_CONTEXT>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.encoder = vision = VisionTransformer(keys, weights.scope("v"), gelu="gelu")
        self.merge = keys.integer("vision.projector.scale_factor", 2, low=1, high=64)
        self.n_out = keys.integer("vision.projection_dim", low=1, high=1 << 16)
        tile = keys.integer("vision.image_size", low=1, high=8192)
        side = tile // vision.patch_size
        if vision.class_row is None or side**2 != len(vision.positions) or side % self.merge:
            raise LoadError(
                f"[clip] image_size {tile}, patch_size {vision.patch_size}, scale_factor {self.merge} and "
                f"{len(vision.positions)} positions do not fit together"
            )
        settings = {
            "size": {"height": tile, "width": tile},
            "crop_to_patches": True,
            "min_patches": keys.integer("vision.preproc_min_tiles", 1, low=1, high=256),
            "max_patches": keys.integer("vision.preproc_max_tiles", 12, low=1, high=256),
        }
        self.processor = image_processor(keys, "GotOcr2ImageProcessor", vision.patch_size, self.merge, settings)
        self.patch_dim, self.merged = vision.patch_dim, vision.dim * self.merge**2
        projector = weights.scope("mm.model.mlp")
        self.norm = projector.layer_norm("0", self.merged, NORM_EPS, bias=True)
        self.projector = Projector(projector, ("1", "3"), self.merged, self.n_out, self.n_out)
        self.stages = {
            "encoder": Stage(vision.encode, n_layer=vision.n_layer, more_rows=1),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<img>", sum(layout.n_tokens), "</img>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        states = run("encoder", self.encoder.features(view.patches, self.encoder.positions))
        return run("projector", merged_rows(states[1:], view.n_rows, view.n_cols, self.merge))

    def project(self, step: Step) -> Tensor:
        return self.projector(self.norm(step.features(self.merged)))


MODELS = {"internvl": InternVl}

# --- checkpoint ---

_LAYER = "vision_tower.encoder.layer.{i}"


def _tensors(config: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": "vision_tower.embeddings.patch_embeddings.projection",
        "v.class_embd": tensor("vision_tower.embeddings.cls_token", change=squeezed),
        "v.position_embd.weight": tensor("vision_tower.embeddings.position_embeddings", change=squeezed),
        "v.blk.{i}.ln1": f"{_LAYER}.layernorm_before",
        "v.blk.{i}.ln2": f"{_LAYER}.layernorm_after",
        "v.blk.{i}.attn_q": f"{_LAYER}.attention.q_proj",
        "v.blk.{i}.attn_k": f"{_LAYER}.attention.k_proj",
        "v.blk.{i}.attn_v": f"{_LAYER}.attention.v_proj",
        "v.blk.{i}.attn_q_norm": f"{_LAYER}.attention.q_norm",
        "v.blk.{i}.attn_k_norm": f"{_LAYER}.attention.k_norm",
        "v.blk.{i}.attn_out": f"{_LAYER}.attention.projection_layer",
        "v.blk.{i}.ffn_up": f"{_LAYER}.mlp.fc1",
        "v.blk.{i}.ffn_down": f"{_LAYER}.mlp.fc2",
        "v.blk.{i}.ls1.weight": f"{_LAYER}.lambda_1",
        "v.blk.{i}.ls2.weight": f"{_LAYER}.lambda_2",
        "mm.model.mlp.0": "multi_modal_projector.layer_norm",
        "mm.model.mlp.1": "multi_modal_projector.linear_1",
        "mm.model.mlp.3": "multi_modal_projector.linear_2",
    }


def _patch_size(config: Fields) -> int:
    sizes = config.value("patch_size") or 14
    if isinstance(sizes, list) and len(set(sizes)) == 1:
        sizes = sizes[0]
    if not isinstance(sizes, int):
        raise UnsupportedError(f"[convert] unsupported 'patch_size': {sizes!r:.40} (expected a square)")
    return sizes


def _merge(whole: Fields) -> int:
    """Return the side of a token in patches, after checking that the last layer's features are used."""
    layer, strategy = whole.value("vision_feature_layer"), whole.text("vision_feature_select_strategy", "default")
    if layer not in (None, -1) or strategy != "default":
        raise UnsupportedError(f"[convert] unsupported 'vision_feature_layer': {layer!r:.40}, {strategy:.40}")
    if not whole.inner("vision_config").flag("use_mean_pooling", True):
        raise UnsupportedError("[convert] unsupported 'use_mean_pooling': false")
    return int(1 / whole.number("downsample_ratio", 0.5))


_INTERNVL = MediaCheckpoint(
    "internvl",
    "vision_config",
    {
        "vision_tower.": ("model.vision_tower.", "vision_tower."),
        "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
    },
    {
        "use_gelu": activation_key("gelu"),
        "vision.embedding_length": u32("hidden_size", default=1024),
        "vision.block_count": u32("num_hidden_layers", default=24),
        "vision.feed_forward_length": u32("intermediate_size", default=4096),
        "vision.attention.head_count": u32("num_attention_heads", default=16),
        "vision.attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-6),
        "vision.patch_size": computed("u32", _patch_size),
    },
    _tensors,
    whole_keys={"vision.projection_dim": text_width, "vision.projector.scale_factor": computed("u32", _merge)},
    settings={
        "vision.image_size": edge_of("size", "height", 384),
        "vision.preproc_min_tiles": u32("min_patches", default=1),
        "vision.preproc_max_tiles": u32("max_patches", default=12),
    },
    limits_pixels=False,
    fixed={"resample": 3},
    unused=("embeddings.mask_token",),
)
HF = {"InternVLForConditionalGeneration": _INTERNVL}
