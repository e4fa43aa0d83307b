"""Gemma 3 (Kamath et al. 2025): SigLIP of one square size, whose patches are averaged into 256 tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

import numpy as np

from ...checkpoints.mapping import Fields, Source, computed, f32, tensor, u32
from ...checkpoints.mapping.changes import adding
from ...errors import LoadError, UnsupportedError
from ...media import Layout, View, open_processor
from ...media.pixels import Floats
from ...nn import Keys, Linear, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, layer_tensors
from .grids import averaged
from .vit import Block, embedded

MERGE = 4  # patches along each side of the square that becomes a token


class Gemma3(MediaModel):
    pad = "<image_soft_token>"
    template_text = "<start_of_image>"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, n_layer, patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        n_head, self.n_out, self.merge = read["attention.head_count"], read["projection_dim"], MERGE
        if keys.has("vision.projector.scale_factor"):
            self.merge = keys.integer("vision.projector.scale_factor", low=1, high=64)
        if self.dim % n_head:
            raise LoadError(f"[clip] embedding_length {self.dim} is not divisible by head_count {n_head}")
        eps = keys.number("vision.attention.layer_norm_epsilon")
        keys.only("use_gelu", True)
        self.patch_dim, side = 3 * patch_size**2, read["image_size"] // patch_size
        settings: dict[str, object] = {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": read["image_size"], "width": read["image_size"]},
            **{name: keys.numbers(f"vision.{name}", 3) for name in COLOURS if keys.has(f"vision.{name}")},
        }
        self.processor = open_processor(settings, patch_size=patch_size, merge=self.merge)

        vision, projector = weights.scope("v"), weights.scope("mm")
        kernel = vision.dequantized("patch_embd.weight", (self.dim, 3, patch_size, patch_size))
        self.patch_embedding = Linear(
            vision.computed("patch_embd.rows", kernel.reshape(self.dim, self.patch_dim)),
            vision.tensor("patch_embd.bias", (self.dim,), vector=True),
        )
        self.positions = vision.numbers("position_embd.weight", (side * side, self.dim))
        self.blocks = [
            Block(block, self.dim, read["feed_forward_length"], n_head, eps=eps, activation="gelu_tanh")
            for block in vision.blocks(n_layer)
        ]
        self.norm = vision.layer_norm("post_ln", self.dim, eps, bias=True)
        self.soft_norm = projector.norm("soft_emb_norm", self.dim, eps)
        # Stored as the factor on the right of the rows, as in the checkpoint.  Files of llama.cpp hold f16, for which
        # the rows would be rounded; they are few.
        matrix = projector.dequantized("input_projection.weight", (self.dim, self.n_out)).astype(np.float32)
        self.projection = Linear(projector.computed("input_projection.rows", matrix.T))
        self.stages = {
            "encoder": Stage(self.encode, n_layer=n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return ["\n\n<start_of_image>", sum(layout.n_tokens), "<end_of_image>\n\n"]

    def rows(self, view: View, run: RunStage) -> Floats:
        states = run("encoder", np.concatenate([view.patches, self.positions], axis=1))
        return run("projector", averaged(states, view.n_rows, view.n_cols, self.merge))

    def encode(self, step: Step) -> Tensor:
        x = embedded(step, self.patch_embedding, self.patch_dim, self.dim)
        return self.norm(step.run_layers(self.blocks, x))

    def project(self, step: Step) -> Tensor:
        return self.projection(self.soft_norm(step.features(self.dim)))


MODELS = {"gemma3": Gemma3}
SIZES = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "patch_size", "image_size",
    "projection_dim",
)  # fmt: skip
COLOURS = ("image_mean", "image_std")

# --- checkpoint ---

_LAYER = "vision_tower.encoder.layers.{i}."


def _merge(model: Fields) -> int | None:
    """Return the side of the squares that are averaged, or None for the usual one, which is not written."""
    vision = model.inner("vision_config")
    side = vision.integer("image_size", 224) // vision.integer("patch_size", 16)
    tokens = isqrt(model.integer("mm_tokens_per_image", 256))
    if tokens < 1 or side % tokens:
        raise UnsupportedError(f"[convert] unsupported 'mm_tokens_per_image': {tokens**2} of {side} x {side} patches")
    return None if side // tokens == MERGE else side // tokens


def _tensors(model: Fields) -> Mapping[str, str | Source]:
    names = {
        "v.patch_embd": "vision_tower.embeddings.patch_embedding",
        "v.position_embd": "vision_tower.embeddings.position_embedding",
        "v.post_ln": "vision_tower.post_layernorm",
        **layer_tensors(_LAYER),
        "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
    }
    norm = tensor("multi_modal_projector.mm_soft_emb_norm.weight", change=adding(1.0))
    return {**names, "mm.soft_emb_norm.weight": norm}


HF = {
    "Gemma3ForConditionalGeneration": MediaCheckpoint(
        "gemma3",
        "vision_config",
        {
            "vision_tower.": tuple(
                f"{base}vision_tower.{model}" for model in ("vision_model.", "") for base in ("model.", "")
            ),
            "multi_modal_projector.": ("model.multi_modal_projector.", "multi_modal_projector."),
        },
        {
            "use_gelu": computed("bool", lambda config: True),
            "vision.embedding_length": u32("hidden_size", default=768),
            "vision.block_count": u32("num_hidden_layers", default=12),
            "vision.feed_forward_length": u32("intermediate_size", default=3072),
            "vision.attention.head_count": u32("num_attention_heads", default=12),
            "vision.attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-6),
            "vision.patch_size": u32("patch_size", default=16),
            "vision.image_size": u32("image_size", default=224),
        },
        _tensors,
        whole_keys={
            "vision.projection_dim": computed(
                "u32", lambda model: model.inner("text_config").integer("hidden_size", 2304)
            ),
            "vision.projector.scale_factor": computed("u32", _merge),
        },
        unused=("vision_tower.*head.*",),
        limits_pixels=False,
        fixed={"do_pan_and_scan": False},
    )
}
