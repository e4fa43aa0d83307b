"""CLIP's encoder (Radford et al. 2021): the class token's state, projected to the vector of the whole image."""

from __future__ import annotations

from collections.abc import Mapping

from ..._native.graph import quick_gelu
from ...checkpoints.mapping import Source, computed, f32, u32
from ...errors import LoadError
from ...media import View
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, edge_of, image_processor, is_gelu, layer_tensors
from .vit import VisionTransformer


class Clip(MediaModel):
    gives_vectors = True

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.encoder = vision = VisionTransformer(keys, weights.scope("v"), gelu="gelu", other=quick_gelu)
        self.n_out = keys.integer("vision.projection_dim", low=1, high=1 << 16)
        side = keys.integer("vision.image_size", low=1, high=8192)
        if vision.class_row is None or vision.norm is None or (side // vision.patch_size) ** 2 != len(vision.positions):
            raise LoadError(
                f"[clip] image_size {side}, patch_size {vision.patch_size} and {len(vision.positions)} positions "
                "do not fit together, or the class token or the last norm is missing"
            )
        settings: dict[str, object] = {
            "size": {"shortest_edge": keys.integer("vision.preproc_image_size", side, low=1, high=8192)},
            "crop_size": {"height": side, "width": side},
        }
        self.patch_dim = vision.patch_dim
        self.processor = image_processor(keys, "CLIPImageProcessor", vision.patch_size, 1, settings)
        self.projection = weights.scope("mm").linear("input_projection", vision.dim, self.n_out)
        self.stages = {
            "encoder": Stage(vision.encode, n_layer=vision.n_layer, more_rows=1),
            "projector": Stage(self.project),
        }

    def rows(self, view: View, run: RunStage) -> Floats:
        states = run("encoder", self.encoder.features(view.patches, self.encoder.positions))
        return run("projector", states[:1])

    def project(self, step: Step) -> Tensor:
        return self.projection(step.features(self.encoder.dim))


MODELS = {"clip": Clip}

# --- checkpoint ---

_TENSORS: Mapping[str, str | Source] = {
    "v.patch_embd": "vision_model.embeddings.patch_embedding",
    "v.class_embd": "vision_model.embeddings.class_embedding",
    "v.position_embd": "vision_model.embeddings.position_embedding",
    "v.pre_ln": "vision_model.pre_layrnorm",
    **layer_tensors("vision_model.encoder.layers.{i}."),
    "v.post_ln": "vision_model.post_layernorm",
    "mm.input_projection": "visual_projection",
}
HF = {
    "CLIPModel": MediaCheckpoint(
        "clip",
        "vision_config",
        {"vision_model.": ("vision_model.",), "visual_projection": ("visual_projection",)},
        {
            "use_gelu": computed("bool", is_gelu),
            "vision.embedding_length": u32("hidden_size", default=768),
            "vision.block_count": u32("num_hidden_layers", default=12),
            "vision.feed_forward_length": u32("intermediate_size", default=3072),
            "vision.attention.head_count": u32("num_attention_heads", default=12),
            "vision.attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
            "vision.patch_size": u32("patch_size", default=32),
            "vision.image_size": u32("image_size", default=224),
        },
        lambda config: _TENSORS,
        whole_keys={"vision.projection_dim": u32("projection_dim", default=512)},
        settings={"vision.preproc_image_size": edge_of("size", "shortest_edge", 224)},
        limits_pixels=False,
        fixed={"resample": 3, "do_center_crop": True, "do_resize": True},
        unused=("embeddings.position_ids",),
    )
}
