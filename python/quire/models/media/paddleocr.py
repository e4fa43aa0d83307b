"""PaddleOCR-VL (Baidu 2025): SigLIP with RoPE by row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

import numpy as np

from ...checkpoints.mapping import Fields, Source, computed, f32, u32
from ...errors import LoadError, UnsupportedError
from ...media import Layout, View
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, image_processor, layer_tensors, text_width
from .grids import centred_rows, merged_places, merged_rows
from .vit import Block, Projector, axial_rope, embedded, patch_embedding

SIZES = (
    "embedding_length", "block_count", "attention.head_count", "patch_size", "projection_dim", "feed_forward_length",
)  # fmt: skip


class PaddleOcr(MediaModel):
    pad = "<|IMAGE_PLACEHOLDER|>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, n_layer, patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        n_head, self.n_out = read["attention.head_count"], read["projection_dim"]
        self.merge = keys.integer("vision.spatial_merge_size", 2, low=1, high=64)
        if self.dim % (4 * n_head):
            raise LoadError(f"[clip] embedding_length {self.dim} does not divide into {n_head} heads of 4 parts")
        eps = keys.number("vision.attention.layer_norm_epsilon")
        keys.only("use_gelu", True)
        self.patch_dim = 3 * patch_size**2
        self.processor = image_processor(keys, "PaddleOCRVLImageProcessor", patch_size, self.merge)
        vision, projector = weights.scope("v"), weights.scope("mm")
        self.patch_embedding = patch_embedding(vision, self.dim, patch_size)
        n_places = vision.n_rows("position_embd.weight")
        if (side := isqrt(n_places)) ** 2 != n_places:
            raise LoadError(f"[clip] {n_places} position embeddings are not a square grid")
        self.positions = vision.numbers("position_embd.weight", (n_places, self.dim)).reshape(side, side, self.dim)
        rotation = axial_rope(vision, self.dim // n_head)
        self.blocks = [
            Block(
                block, self.dim, read["feed_forward_length"], n_head, eps=eps, activation="gelu_tanh",
                rotation=rotation, is_rms=False,
            )
            for block in vision.blocks(n_layer)
        ]  # fmt: skip
        self.norm = vision.layer_norm("post_ln", self.dim, eps, bias=True)
        self.last_norm = projector.layer_norm("input_norm", self.dim, 1e-5, bias=True)
        self.merged = self.dim * self.merge**2
        self.projector = Projector(projector, ("1", "2"), self.merged, self.merged, self.n_out)
        self.stages = {
            "encoder": Stage(self.encode, n_layer=n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["<|IMAGE_START|>", sum(layout.n_tokens), "<|IMAGE_END|>"]

    def token_grid(self, layout: Layout) -> tuple[int, int]:
        n_rows, n_cols = layout.views[0]
        return n_rows // self.merge, n_cols // self.merge

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = merged_places(view.n_rows, view.n_cols, 1)
        positions = centred_rows(self.positions, view.n_rows, view.n_cols, is_cubic=False).reshape(-1, self.dim)
        axes = np.stack([np.zeros_like(rows), rows, cols])
        states = run("encoder", np.concatenate([view.patches, positions], axis=1), axes)
        return run("projector", merged_rows(states, view.n_rows, view.n_cols, self.merge))

    def encode(self, step: Step) -> Tensor:
        x = embedded(step, self.patch_embedding, self.patch_dim, self.dim)
        return self.last_norm(self.norm(step.run_layers(self.blocks, x)))

    def project(self, step: Step) -> Tensor:
        return self.projector(step.features(self.merged))


MODELS = {"paddleocr": PaddleOcr}

# --- checkpoint ---


def _is_gelu(config: Fields) -> bool:
    if (found := config.text("hidden_act")) != "gelu_pytorch_tanh":
        raise UnsupportedError(f"[convert] unsupported 'hidden_act' of the encoder: '{found:.40}'")
    return True


# transformers' defaults, which published configurations omit.
_DEFAULTS = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 384, "patch_size": 14, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    "spatial_merge_size": 2,
}  # fmt: skip
_VIT, _LAYER = "visual.vision_model.", "visual.vision_model.encoder.layers.{i}."


def _tensors(whole: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": f"{_VIT}embeddings.patch_embedding",
        "v.position_embd": f"{_VIT}embeddings.position_embedding",
        **layer_tensors(_LAYER),
        "v.post_ln": f"{_VIT}post_layernorm",
        "mm.input_norm": "mlp_AR.pre_norm",
        "mm.1": "mlp_AR.linear_1",
        "mm.2": "mlp_AR.linear_2",
    }


HF = {
    "PaddleOCRVLForConditionalGeneration": MediaCheckpoint(
        "paddleocr",
        "vision_config",
        {"visual.": ("model.visual.", "visual."), "mlp_AR.": ("model.projector.", "mlp_AR.")},
        {
            "use_gelu": computed("bool", _is_gelu),
            "vision.embedding_length": u32("hidden_size"),
            "vision.feed_forward_length": u32("intermediate_size"),
            "vision.block_count": u32("num_hidden_layers"),
            "vision.attention.head_count": u32("num_attention_heads"),
            "vision.attention.layer_norm_epsilon": f32("layer_norm_eps"),
            "vision.patch_size": u32("patch_size"),
            "vision.spatial_merge_size": u32("spatial_merge_size"),
            "vision.image_size": u32("image_size"),
        },
        _tensors,
        whole_keys={"vision.projection_dim": text_width},
        unused=("vision_model.embeddings.packing_position_embedding*", "vision_model.head.*"),
        defaults=_DEFAULTS,
    )
}
