"""LFM2-VL (Liquid AI 2025): SigLIP 2 over images of any shape, or over tiles and a thumbnail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

from ...checkpoints.mapping import Fields, Key, Source, computed, f32, tensor, u32
from ...errors import LoadError, UnsupportedError
from ...media import Layout, View
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, activation_key, image_processor, kernel_of_patches, layer_tensors, text_width
from .grids import antialiased_rows, merged_rows
from .vit import Projector, VisionTransformer

NORM_EPS = 1e-5
# Tokens of images that are not cut: the keys hold pixels.
MIN_TOKENS, MAX_TOKENS = 64, 256


class Lfm2Vl(MediaModel):
    pad = "<image>"
    template_text = "<image>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.encoder = vision = VisionTransformer(keys, weights.scope("v"), gelu="gelu_tanh")
        self.merge = keys.integer("vision.projector.scale_factor", 2, low=1, high=64)
        self.n_out = keys.integer("vision.projection_dim", low=1, high=1 << 16)
        self.side, unit = isqrt(len(vision.positions)), vision.patch_size * self.merge
        tile = keys.integer("vision.preproc_image_size", 512, low=1, high=8192)
        if self.side**2 != len(vision.positions) or tile % unit:
            raise LoadError(
                f"[clip] preproc_image_size {tile}, patch_size {vision.patch_size}, scale_factor {self.merge} and "
                f"{len(vision.positions)} positions do not fit together"
            )
        settings = {
            "tile_size": tile,
            "min_tiles": keys.integer("vision.preproc_min_tiles", 2, low=1, high=256),
            "max_tiles": keys.integer("vision.preproc_max_tiles", 10, low=1, high=256),
            "min_image_tokens": keys.integer("vision.image_min_pixels", MIN_TOKENS * unit**2, low=1) // unit**2,
            "max_image_tokens": keys.integer("vision.image_max_pixels", MAX_TOKENS * unit**2, low=1) // unit**2,
        }
        self.processor = image_processor(keys, "Lfm2VlImageProcessor", vision.patch_size, self.merge, settings)
        self.patch_dim, self.merged = vision.patch_dim, vision.dim * self.merge**2
        projector = weights.scope("mm")
        has_norm = projector.has("input_norm.weight")
        self.norm = projector.layer_norm("input_norm", self.merged, NORM_EPS, bias=True) if has_norm else None
        self.projector = Projector(projector, ("1", "2"), self.merged, projector.n_rows("1.weight"), self.n_out)
        self.stages = {
            "encoder": Stage(vision.encode, n_layer=vision.n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        parts: list[str | int] = ["<|image_start|>"]
        n_tokens = list(layout.n_tokens)
        for row in range(layout.tile_rows):
            for col in range(layout.tile_cols):
                parts += [f"<|img_row_{row + 1}_col_{col + 1}|>", n_tokens.pop(0)]
        if layout.tile_rows:
            parts.append("<|img_thumbnail|>")
        return [*parts, n_tokens.pop(0), "<|image_end|>"]

    def rows(self, view: View, run: RunStage) -> Floats:
        table = self.encoder.positions.reshape(self.side, self.side, -1)
        positions = antialiased_rows(table, view.n_rows, view.n_cols).reshape(-1, self.encoder.dim)
        states = run("encoder", self.encoder.features(view.patches, positions))
        return run("projector", merged_rows(states, view.n_rows, view.n_cols, self.merge))

    def project(self, step: Step) -> Tensor:
        x = step.features(self.merged)
        return self.projector(x if self.norm is None else self.norm(x))


MODELS = {"lfm2": Lfm2Vl}

# --- checkpoint ---


def _tensors(config: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": tensor("vision_tower.embeddings.patch_embedding", change=kernel_of_patches),
        "v.position_embd": "vision_tower.embeddings.position_embedding",
        **layer_tensors("vision_tower.encoder.layers.{i}."),
        "v.post_ln": "vision_tower.post_layernorm",
        "mm.input_norm": "multi_modal_projector.layer_norm",
        "mm.1": "multi_modal_projector.linear_1",
        "mm.2": "multi_modal_projector.linear_2",
    }


def _merge(whole: Fields) -> int:
    if (found := whole.text("projector_hidden_act", "gelu")) != "gelu":
        raise UnsupportedError(f"[convert] unsupported 'projector_hidden_act': {found:.40} (expected gelu)")
    return whole.integer("downsample_factor", 2, low=1)


def _tiles(name: str, default: int) -> Key:
    return computed("u32", lambda s: s.integer(name, default) if s.flag("do_image_splitting", True) else 1)


def _pixels(name: str, default: int) -> Key:
    def read(settings: Fields) -> int:
        unit = settings.integer("encoder_patch_size", 16) * settings.integer("downsample_factor", 2)
        return settings.integer(name, default, low=1) * unit**2

    return computed("u32", read)


_TOWERS = ("model.vision_tower.vision_model.", "vision_tower.vision_model.", "model.vision_tower.", "vision_tower.")
HF = {
    "Lfm2VlForConditionalGeneration": MediaCheckpoint(
        "lfm2",
        "vision_config",
        {
            "vision_tower.": _TOWERS,
            "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
        },
        {
            "use_gelu": activation_key("gelu_pytorch_tanh"),
            "vision.embedding_length": u32("hidden_size", default=768),
            "vision.block_count": u32("num_hidden_layers", default=12),
            "vision.feed_forward_length": u32("intermediate_size", default=3072),
            "vision.attention.head_count": u32("num_attention_heads", default=12),
            "vision.attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-6),
            "vision.patch_size": u32("patch_size", default=16),
            # Images have any size; llama.cpp wants a number.
            "vision.image_size": computed("u32", lambda config: 256),
        },
        _tensors,
        whole_keys={"vision.projection_dim": text_width, "vision.projector.scale_factor": computed("u32", _merge)},
        settings={
            "vision.preproc_image_size": u32("tile_size", default=512),
            "vision.preproc_min_tiles": _tiles("min_tiles", 2),
            "vision.preproc_max_tiles": _tiles("max_tiles", 10),
            "vision.image_min_pixels": _pixels("min_image_tokens", MIN_TOKENS),
            "vision.image_max_pixels": _pixels("max_image_tokens", MAX_TOKENS),
        },
        limits_pixels=False,
        fixed={"resample": 2, "use_thumbnail": True, "max_pixels_tolerance": 2.0},
        unused=("head.*", "embeddings.position_ids"),
    )
}
