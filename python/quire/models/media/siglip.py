"""SigLIP (Zhai et al. 2023) and SigLIP 2 (Tschannen et al. 2025): a learned query attends to all patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

import numpy as np

from ..._native.graph import concat
from ...checkpoints.mapping import Fields, Source, computed, f32, tensor, u32
from ...checkpoints.mapping.changes import Array, Change
from ...errors import LoadError
from ...media import View
from ...media.pixels import Floats
from ...nn import MLP, Keys, Linear, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, activation_key, edge_of, image_processor, kernel_of_patches, layer_tensors
from .grids import antialiased_rows
from .vit import VisionTransformer


class Siglip(MediaModel):
    gives_vectors = True

    def __init__(self, keys: Keys, weights: Weights) -> None:
        self.encoder = vision = VisionTransformer(keys, weights.scope("v"), gelu="gelu_tanh")
        self.n_out = dim = vision.dim
        self.patch_dim, self.side = vision.patch_dim, isqrt(len(vision.positions))
        if vision.norm is None or self.side**2 != len(vision.positions):
            raise LoadError(f"[clip] {len(vision.positions)} positions are not a square, or the last norm is missing")
        self._read_processor(keys)
        head = weights.scope("v.head")
        self.n_head = keys.integer("vision.attention.head_count", low=1)
        eps = keys.number("vision.attention.layer_norm_epsilon")
        q, k = (head.dequantized(f"attn_{one}.weight", (dim, dim)).astype(np.float64) for one in "qk")
        query = q @ head.numbers("probe", (dim,)) + head.numbers("attn_q.bias", (dim,))
        head.numbers("attn_k.bias", (dim,))  # adds the same to all scores of a head
        # The query is the same for all images, so a head's score of a patch is a product with one vector.
        heads = query.reshape(self.n_head, -1, 1) * k.reshape(self.n_head, -1, dim) * (dim // self.n_head) ** -0.5
        self.scores = Linear(head.computed("scores", heads.sum(1).astype(np.float32)))
        self.v, self.o = (head.linear(name, dim, dim, bias=True) for name in ("attn_v", "attn_out"))
        self.head_norm = head.layer_norm("ln", dim, eps, bias=True)
        self.mlp = MLP(head, dim, head.n_rows("ffn_up.weight"), "gelu_tanh")
        keys.integer("vision.projection_dim", dim, low=dim, high=dim)  # llama.cpp wants it in every file
        self.stages = {
            "encoder": Stage(vision.encode, n_layer=vision.n_layer),
            "head": Stage(self.weigh),
            "pooled": Stage(self.pool),
        }

    def _read_processor(self, keys: Keys) -> None:
        side, patch_size = keys.integer("vision.image_size", low=1, high=8192), self.encoder.patch_size
        edge = keys.integer("vision.preproc_image_size", side, low=1, high=8192)
        if edge != side or side // patch_size != self.side:
            raise LoadError(
                f"[clip] image_size {side}, preproc_image_size {edge}, patch_size {patch_size} and {self.side**2} "
                "positions do not fit together"
            )
        resample = keys.integer("vision.image_resample", 3, low=0, high=5)
        settings = {"size": {"height": side, "width": side}, "resample": resample}
        self.processor = image_processor(keys, "SiglipImageProcessor", patch_size, 1, settings)

    def positions(self, view: View) -> Floats:
        """Return the position embeddings of a view's patches."""
        return self.encoder.positions

    def rows(self, view: View, run: RunStage) -> Floats:
        states = run("encoder", self.encoder.features(view.patches, self.positions(view)))
        found = run("head", states)
        scores, values = found[:, : self.n_head], found[:, self.n_head :].reshape(len(found), self.n_head, -1)
        odds = np.exp(scores - scores.max(0))
        return run("pooled", np.einsum("ph,phd->hd", odds / odds.sum(0), values).reshape(1, -1))

    def weigh(self, step: Step) -> Tensor:
        x = step.features(self.encoder.dim)
        return concat(self.scores(x), self.v(x), 0)

    def pool(self, step: Step) -> Tensor:
        x = self.o(step.features(self.encoder.dim))
        return x + self.mlp(self.head_norm(x))


class Siglip2(Siglip):
    """SigLIP 2 for images of any shape, whose position embeddings are resized."""

    def _read_processor(self, keys: Keys) -> None:
        settings = {"max_num_patches": keys.integer("vision.max_num_patches", 256, low=1, high=1 << 16)}
        self.processor = image_processor(keys, "Siglip2ImageProcessor", self.encoder.patch_size, 1, settings)

    def positions(self, view: View) -> Floats:
        table = self.encoder.positions.reshape(self.side, self.side, -1)
        return antialiased_rows(table, view.n_rows, view.n_cols).reshape(-1, self.encoder.dim)


MODELS = {"siglip": Siglip, "siglip2": Siglip2}

# --- checkpoint ---


def _third(i: int) -> Change:
    """Take the part of torch's attention for queries, keys or values."""

    def change(x: Array, config: Fields) -> Array:
        return np.ascontiguousarray(np.split(x, 3)[i])

    return change


def _flat(x: Array, config: Fields) -> Array:
    return np.ascontiguousarray(x.reshape(-1))


_HEAD = "vision_model.head"
_TENSORS: Mapping[str, str | Source] = {
    "v.patch_embd": "vision_model.embeddings.patch_embedding",
    "v.position_embd": "vision_model.embeddings.position_embedding",
    **layer_tensors("vision_model.encoder.layers.{i}."),
    "v.post_ln": "vision_model.post_layernorm",
    "v.head.probe": tensor(f"{_HEAD}.probe", change=_flat),
    **{
        f"v.head.attn_{one}.{part}": tensor(f"{_HEAD}.attention.in_proj_{part}", change=_third(i))
        for i, one in enumerate("qkv")
        for part in ("weight", "bias")
    },
    "v.head.attn_out": f"{_HEAD}.attention.out_proj",
    "v.head.ln": f"{_HEAD}.layernorm",
    "v.head.ffn_up": f"{_HEAD}.mlp.fc1",
    "v.head.ffn_down": f"{_HEAD}.mlp.fc2",
}
_SIGLIP = MediaCheckpoint(
    "siglip",
    "vision_config",
    {"vision_model.": ("vision_model.",)},
    {
        "use_gelu": activation_key("gelu_pytorch_tanh"),
        "vision.embedding_length": u32("hidden_size", default=768),
        "vision.block_count": u32("num_hidden_layers", default=12),
        "vision.feed_forward_length": u32("intermediate_size", default=3072),
        "vision.attention.head_count": u32("num_attention_heads", default=12),
        "vision.attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-6),
        "vision.patch_size": u32("patch_size", default=16),
        "vision.image_size": u32("image_size", default=224),
        "vision.projection_dim": u32("hidden_size", default=768),
    },
    lambda config: _TENSORS,
    settings={
        "vision.preproc_image_size": edge_of("size", "height", 224),
        "vision.image_resample": u32("resample", default=3),
    },
    limits_pixels=False,
    fixed={"do_resize": True},
    unused=("embeddings.position_ids",),
)
_SIGLIP2 = replace(
    _SIGLIP,
    projector="siglip2",
    keys={
        **{name: key for name, key in _SIGLIP.keys.items() if name != "vision.image_size"},
        # Images have any size; llama.cpp wants a number.
        "vision.image_size": computed(
            "u32", lambda config: isqrt(config.integer("num_patches", 256)) * config.integer("patch_size", 16)
        ),
    },
    tensors=lambda config: {
        **_TENSORS,
        "v.patch_embd": tensor("vision_model.embeddings.patch_embedding", change=kernel_of_patches),
    },
    settings={"vision.max_num_patches": u32("max_num_patches", default=256)},
    fixed={"resample": 2, "do_resize": True},
)
HF = {"SiglipModel": _SIGLIP, "Siglip2Model": _SIGLIP2}
