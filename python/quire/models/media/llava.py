"""LLaVA 1.5 (Liu et al. 2023): CLIP's hidden states before its last layer, one token for each patch."""

from __future__ import annotations

from collections.abc import Mapping

from ..._native.graph import quick_gelu
from ...checkpoints.mapping import Fields, Source, computed, f32, u32
from ...errors import LoadError, UnsupportedError
from ...media import View
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, edge_of, image_processor, layer_tensors, text_width
from .vit import Projector, VisionTransformer


class Llava(MediaModel):
    pad = "<image>"
    template_text = "<image>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.encoder = vision = VisionTransformer(keys, weights.scope("v"), gelu="gelu", other=quick_gelu)
        keys.without_effect("vision.projection_dim")  # older files hold CLIP's own
        if keys.has("vision.feature_layer") and keys.some_integers("vision.feature_layer") != [vision.n_layer]:
            raise UnsupportedError("[clip] unsupported 'clip.vision.feature_layer': expected the last of the file")
        side = keys.integer("vision.image_size", low=1, high=8192)
        if vision.class_row is None or (side // vision.patch_size) ** 2 != len(vision.positions):
            raise LoadError(
                f"[clip] image_size {side}, patch_size {vision.patch_size} and {len(vision.positions)} positions "
                "do not fit together"
            )
        settings = {
            "size": {"shortest_edge": keys.integer("vision.preproc_image_size", side, low=1, high=8192)},
            "crop_size": {"height": side, "width": side},
        }
        self.processor = image_processor(keys, "CLIPImageProcessor", vision.patch_size, 1, settings)
        self.patch_dim, self.n_out = vision.patch_dim, weights.n_rows("mm.2.weight")
        self.projector = Projector(weights.scope("mm"), ("0", "2"), vision.dim, self.n_out, self.n_out)
        self.stages = {
            "encoder": Stage(vision.encode, n_layer=vision.n_layer, more_rows=1),
            "projector": Stage(self.project),
        }

    def rows(self, view: View, run: RunStage) -> Floats:
        states = run("encoder", self.encoder.features(view.patches, self.encoder.positions))
        return run("projector", states[1:])

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


def _is_gelu(config: Fields) -> bool:
    if (name := config.text("hidden_act", "quick_gelu")) not in ("quick_gelu", "gelu"):
        raise UnsupportedError(f"[convert] unsupported 'hidden_act': {name:.40} (expected quick_gelu or gelu)")
    return name == "gelu"


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


_TOWERS = ("model.vision_tower.vision_model.", "vision_tower.vision_model.", "model.vision_tower.", "vision_tower.")
_LLAVA = MediaCheckpoint(
    "mlp",
    "vision_config",
    {
        "vision_tower.": _TOWERS,
        "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
    },
    {
        "use_gelu": computed("bool", _is_gelu),
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
HF = {"LlavaForConditionalGeneration": _LLAVA}
