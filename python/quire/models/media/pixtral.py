"""Pixtral (Agrawal et al. 2024), Mistral Small 3.1 and later, Ministral 3: each row of an image ends with a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from ...checkpoints.mapping import Fields, Key, Source, computed, interleaved, tensor, u32
from ...checkpoints.mapping.rope import theta_of
from ...errors import LoadError, UnsupportedError
from ...media import Layout, View
from ...media.pixels import Floats
from ...nn import Keys, Step, Tensor, Weights
from .base import MediaModel, RunStage, Stage
from .checkpoint import MediaCheckpoint, edge_of, image_processor, text_width
from .grids import merged_places
from .vit import Block, Projector, axial_rope, ffn_width, patch_embedding

EPS = 1e-5
SIZES = ("embedding_length", "block_count", "attention.head_count", "patch_size", "projection_dim", "image_size")


class Pixtral(MediaModel):
    pad: str = "[IMG]"
    PROJECTOR_EPS: ClassVar[float | None] = None  # epsilon of the projector's norm, if it differs from the encoder's

    template_text = "[IMG]"

    def __init__(self, keys: Keys, weights: Weights) -> None:
        read = {name: keys.integer(f"vision.{name}", low=1, high=1 << 16) for name in SIZES}
        self.dim, n_layer, patch_size = read["embedding_length"], read["block_count"], read["patch_size"]
        n_head, self.n_out = read["attention.head_count"], read["projection_dim"]
        self.merge = keys.integer("vision.spatial_merge_size", 1, low=1, high=64)
        if self.dim % (4 * n_head):
            raise LoadError(f"[clip] embedding_length {self.dim} does not divide into {n_head} heads of 4 parts")
        eps = keys.number("vision.attention.layer_norm_epsilon", EPS)
        keys.without_effect("vision.feed_forward_length")  # tensors give it
        is_gelu, is_silu = keys.flag("use_gelu", False), keys.flag("use_silu", False)
        if is_gelu == is_silu:
            raise UnsupportedError("[clip] unsupported activation: expected one of 'clip.use_gelu' and 'clip.use_silu'")
        longest = keys.integer("vision.preproc_image_size", read["image_size"], low=1, high=1 << 16)
        self.patch_dim = 3 * patch_size**2
        self.processor = image_processor(
            keys, "PixtralImageProcessor", patch_size, self.merge, {"size": {"longest_edge": longest}}
        )

        vision, projector = weights.scope("v"), weights.scope("mm")
        vision.ignore("token_embd.img_break", "breaks are tokens of the prompt")
        self.patch_embedding = patch_embedding(vision, self.dim, patch_size)
        self.first_norm = vision.norm("pre_ln", self.dim, eps)
        rotation = axial_rope(vision, self.dim // n_head, keys.number("rope.freq_base", 10000.0), alternating=True)
        ffn_dim = ffn_width(vision, self.dim)
        self.blocks = [
            Block(
                block, self.dim, ffn_dim, n_head, eps=eps, activation="silu" if is_silu else "gelu", rotation=rotation,
                is_rms=True, is_paired=True,
            )
            for block in vision.blocks(n_layer)
        ]  # fmt: skip
        has_merger = projector.has("patch_merger.weight")
        if not has_merger and self.merge > 1:
            raise LoadError(
                f"[clip] spatial_merge_size is {self.merge}, but there is no tensor 'mm.patch_merger.weight'"
            )
        self.norm = projector.norm("input_norm", self.dim, self.PROJECTOR_EPS or eps) if has_merger else None
        merged = self.dim * self.merge**2
        self.merger = projector.linear("patch_merger", merged, self.dim) if has_merger else None
        self.projector = Projector(projector, ("1", "2"), self.dim, self.n_out, self.n_out)
        self.stages = {
            "encoder": Stage(self.encode, n_layer=n_layer),
            "projector": Stage(self.project, patches_per_row=self.merge**2),
        }

    def markup(self, layout: Layout) -> Sequence[str | int]:
        n_rows, n_cols = (n // self.merge for n in layout.views[0])
        parts: list[str | int] = [n_cols, "[IMG_BREAK]"] * n_rows
        return [*parts[:-1], "[IMG_END]"]

    def rows(self, view: View, run: RunStage) -> Floats:
        rows, cols = merged_places(view.n_rows, view.n_cols, 1)
        states = run("encoder", view.patches, np.stack([np.zeros_like(rows), rows, cols]))
        # A token's input has all patches of its square for the first number of the state, then for the second.
        n_rows, n_cols = view.n_rows // self.merge, view.n_cols // self.merge
        split = states.reshape(n_rows, self.merge, n_cols, self.merge, self.dim)
        return run("projector", split.transpose(0, 2, 4, 1, 3).reshape(n_rows * n_cols, -1))

    def encode(self, step: Step) -> Tensor:
        x = self.first_norm(self.patch_embedding(step.features(self.patch_dim)))
        x = step.run_layers(self.blocks, x)
        return x if self.norm is None else self.norm(x)

    def project(self, step: Step) -> Tensor:
        x = step.features(self.dim * self.merge**2)
        return self.projector(x if self.merger is None else self.merger(x))


class LightOnOcr(Pixtral):
    """LightOnOCR (Taghadouini et al. 2025): Pixtral without tokens for rows."""

    pad = "<|image_pad|>"
    template_text = "<|image_pad|>"
    PROJECTOR_EPS = 1e-6

    def markup(self, layout: Layout) -> Sequence[str | int]:
        return [sum(layout.n_tokens)]


MODELS = {"lightonocr": LightOnOcr, "pixtral": Pixtral}

# --- checkpoint ---


# transformers' defaults, which published configurations omit.
_DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 1024, "patch_size": 16, "hidden_act": "gelu",
}  # fmt: skip
_HEADS = interleaved("num_attention_heads")
_LAYER = "vision_tower.transformer.layers.{i}."


def _uses(activation: str) -> Key:
    def read(config: Fields) -> bool | None:
        found = config.text("hidden_act")
        if found not in ("gelu", "silu"):
            raise UnsupportedError(f"[convert] unsupported 'hidden_act' of the encoder: {found:.40}")
        return True if found == activation else None

    return computed("bool", read)


def _eps(last: float) -> Key:
    """Return the key of the epsilon of all norms but the last one, whose epsilon is the text model's: ``last``."""

    def read(whole: Fields) -> float:
        if (found := whole.inner("text_config").number("rms_norm_eps", last)) != last:
            raise UnsupportedError(f"[convert] unsupported 'rms_norm_eps' of the text model: {found} (expected {last})")
        return EPS

    return computed("f32", read)


def _merge(default: int, fixed: Mapping[str, tuple[object, object]]) -> Key:
    """Return the key of the merge size.

    Args:
        default: The merge size of configurations that have none.
        fixed: Fields of config.json, each with its default and its only supported value.
    """

    def read(whole: Fields) -> int:
        for name, (absent, wanted) in {**fixed, "projector_hidden_act": ("gelu", "gelu")}.items():
            if (found := whole.value(name) if whole.has(name) else absent) != wanted:
                raise UnsupportedError(f"[convert] unsupported '{name}': {found!r:.40} (expected {wanted!r})")
        return whole.integer("spatial_merge_size", default, low=1)

    return computed("u32", read)


def _tensors(whole: Fields) -> Mapping[str, str | Source]:
    return {
        "v.patch_embd": "vision_tower.patch_conv",
        "v.pre_ln": "vision_tower.ln_pre",
        "v.blk.{i}.ln1": f"{_LAYER}attention_norm",
        "v.blk.{i}.ln2": f"{_LAYER}ffn_norm",
        "v.blk.{i}.attn_q": tensor(f"{_LAYER}attention.q_proj", change=_HEADS),
        "v.blk.{i}.attn_k": tensor(f"{_LAYER}attention.k_proj", change=_HEADS),
        "v.blk.{i}.attn_v": f"{_LAYER}attention.v_proj",
        "v.blk.{i}.attn_out": f"{_LAYER}attention.o_proj",
        "v.blk.{i}.ffn_gate": f"{_LAYER}feed_forward.gate_proj",
        "v.blk.{i}.ffn_up": f"{_LAYER}feed_forward.up_proj",
        "v.blk.{i}.ffn_down": f"{_LAYER}feed_forward.down_proj",
        "mm.input_norm": "multi_modal_projector.norm",
        "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
        "mm.1": "multi_modal_projector.linear_1",
        "mm.2": "multi_modal_projector.linear_2",
    }


def _checkpoint(
    merge: Key,
    *,
    projector: str = "pixtral",
    tower: str = "vision_tower.",
    adapter: str = "multi_modal_projector.",
    eps: float = EPS,
    token_rows: Mapping[str, str] | None = None,
) -> MediaCheckpoint:
    return MediaCheckpoint(
        projector,
        "vision_config",
        {
            "vision_tower.": (f"model.{tower}", tower),
            "multi_modal_projector.": (f"model.{adapter}", adapter),
        },
        {
            "use_gelu": _uses("gelu"),
            "use_silu": _uses("silu"),
            "rope.freq_base": computed("f32", theta_of),
            "vision.embedding_length": u32("hidden_size"),
            "vision.feed_forward_length": u32("intermediate_size"),
            "vision.block_count": u32("num_hidden_layers"),
            "vision.attention.head_count": u32("num_attention_heads"),
            "vision.patch_size": u32("patch_size"),
            "vision.image_size": u32("image_size"),
        },
        _tensors,
        whole_keys={
            "vision.projection_dim": text_width,
            "vision.attention.layer_norm_epsilon": _eps(eps),
            "vision.spatial_merge_size": merge,
        },
        settings={"vision.preproc_image_size": edge_of("size", "longest_edge", 1024)},
        limits_pixels=False,
        model_type="pixtral",
        defaults=_DEFAULTS,
        token_rows={} if token_rows is None else token_rows,
    )


_BREAK = {"v.token_embd.img_break": "[IMG_BREAK]"}
HF = {
    "LlavaForConditionalGeneration": _checkpoint(
        _merge(1, {"vision_feature_layer": (-2, -1), "vision_feature_select_strategy": ("default", "full")}),
        token_rows=_BREAK,
    ),
    "Mistral3ForConditionalGeneration": _checkpoint(_merge(2, {"vision_feature_layer": (-1, -1)}), token_rows=_BREAK),
    "LightOnOcrForConditionalGeneration": _checkpoint(
        _merge(2, {}), projector="lightonocr", tower="vision_encoder.", adapter="vision_projection.", eps=1e-6
    ),
}
