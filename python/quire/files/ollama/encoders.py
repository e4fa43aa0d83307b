"""The encoders of images in Ollama's files of text models, by Ollama's name of the architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..._native.core import DType
from ...errors import LoadError
from ..gguf import GGUFReader
from .form import Default, Form, Translation, as_f32, joined

if TYPE_CHECKING:
    from ..._native.core import Tensor
    from .view import Array, Make

__all__ = ["FORMS"]

_HALF = ("f32[]", (0.5, 0.5, 0.5))
_CLIP_COLOURS: Mapping[str, Default] = {
    "vision.image_mean": ("f32[]", (0.48145466, 0.4578275, 0.40821073)),
    "vision.image_std": ("f32[]", (0.26862954, 0.26130258, 0.27577711)),
}
_HALF_COLOURS: Mapping[str, Default] = {"vision.image_mean": _HALF, "vision.image_std": _HALF}
MAX_LAYERS = 1024
_UNUSED = ("vision.num_channels", "vision.temporal_patch_size", "vision.rope.freq_base", "vision.spatial_patch_size")


def _is_vision(name: str) -> bool:
    return name.startswith(("v.", "mm.")) and not name.startswith("mm.a.")


class _Encoder(Form):
    """The keys of the encoder are below ``clip``; those of the text model are left out."""

    def translated(self, reader: GGUFReader) -> GGUFReader:
        inner = f"{self.old}.vision."
        if not any(key.startswith(inner) for key in reader.metadata):
            raise LoadError(f"[gguf] missing keys '{inner}*': the file has no encoder")
        return super().translated(reader)


def _start(made: Translation) -> None:
    """Keep the keys of the encoder, and set those that all have."""
    for key in made.metadata:
        if not key.startswith((f"{made.arch}.", "general.")):
            made.keys.remove(key)
    made.keys.move("clip.embedding_length", "clip.vision.projection_dim")
    for key in made.metadata:
        if key.startswith("clip.") and not key.startswith("clip.vision.") and key not in _FLAGS:
            made.keys.remove(key)
    made.set("has_vision_encoder", "bool", True)


_FLAGS = ("clip.projector_type", "clip.use_gelu", "clip.use_silu")


def _width_from(made: Translation, name: str) -> None:
    if name in made.tensors:
        made.default("vision.feed_forward_length", "u32", made.tensors.shape(name)[0])


def _gemma3(made: Translation) -> None:
    tokens = made.integer("mm.tokens_per_image", 256)
    side = made.integer("vision.image_size") // max(made.integer("vision.patch_size"), 1)
    if tokens and (n := round(tokens**0.5)) ** 2 == tokens and side % n == 0:
        made.set("vision.projector.scale_factor", "u32", side // n)
    _start(made)


def _two_frames(made: Translation) -> None:
    """Split the kernel of pairs of frames, ``[out * 3, 2, height, width]``, into one for each frame."""
    name = "v.patch_embd.weight"
    if name not in made.tensors or made.tensors.shape(name)[1:2] != (2,):
        return
    n_out, _, height, width = made.tensors.shape(name)
    if n_out % 3:
        raise LoadError(f"[gguf] tensor '{name}' has {n_out} rows: expected three for each output")

    def frame(i: int) -> Make:
        def take(tensors: Sequence[Tensor]) -> list[Array]:
            (values,) = as_f32(tensors)
            return [values[:, i].copy()]

        return take

    shape = (n_out // 3, 3, height, width)
    made.tensors.make(f"{name}.1", [name], shape, frame(1), DType("f32"))
    made.tensors.make(name, [name], shape, frame(0), DType("f32"))


def _qwen3(made: Translation) -> None:
    taps = "clip.vision.deepstack_visual_indexes"
    layers = [int(i) for i in made.metadata.array(taps)] if taps in made.metadata else []
    made.keys.remove(taps)
    leaves = {"linear_fc1": "fc1", "linear_fc2": "fc2"}

    def tapped(name: str) -> str:
        begin, _, rest = name.partition("v.deepstack_merger.")
        number, _, leaf = rest.partition(".")
        if begin or not number.isdecimal() or int(number) >= len(layers):
            return name
        module, _, suffix = leaf.rpartition(".")
        return f"v.deepstack.{layers[int(number)]}.{leaves.get(module, module)}.{suffix}"

    made.tensors.rename(tapped)
    for block in made.blocks("v.blk"):
        for suffix in ("weight", "bias"):
            parts = [f"{block}attn_{name}.{suffix}" for name in "qkv"]
            if parts[0] in made.tensors:
                joined(made, f"{block}attn_qkv.{suffix}", parts)
    _two_frames(made)
    _width_from(made, "v.blk.0.ffn_up.weight")
    n_layer = made.metadata.integer("clip.vision.block_count", high=MAX_LAYERS)
    made.set("vision.is_deepstack_layers", "bool[]", [i in layers for i in range(n_layer)])
    _start(made)


def _qwen25(made: Translation) -> None:
    full = "clip.vision.fullatt_block_indexes"
    n_layer = made.metadata.integer("clip.vision.block_count", high=MAX_LAYERS)
    layers = [int(i) for i in made.metadata.array(full)] if full in made.metadata else [7, 15, 23, 31]
    period = layers[0] + 1 if layers else 0
    wanted = [*range(period - 1, n_layer, period)] if period > 0 else []
    if period < 0 or [i for i in layers if i < n_layer] != wanted:
        raise LoadError(f"[gguf] unsupported 'vision.fullatt_block_indexes': {layers[:40]} (expected every n-th layer)")
    made.keys.remove(full)
    made.set("vision.n_wa_pattern", "u32", period)
    _width_from(made, "v.blk.0.ffn_up.weight")
    _start(made)


def _mistral3(made: Translation) -> None:
    made.keys.move("clip.spatial_merge_size", "clip.vision.spatial_merge_size")
    act = made.metadata.text("clip.mm.projector_hidden_act", "gelu")
    if act != "gelu":
        raise LoadError(f"[gguf] unsupported 'mm.projector_hidden_act': '{act:.40}' (expected gelu)")
    n_head = made.integer("vision.attention.head_count")
    for block in made.blocks("v.blk"):
        for name in ("attn_q", "attn_k"):
            full = f"{block}{name}.weight"
            shape = made.tensors.shape(full)
            if not n_head or shape[0] % (2 * n_head):
                raise LoadError(f"[gguf] tensor '{full}' has {shape[0]} rows, which {n_head} heads do not divide")
            made.tensors.make(full, [full], shape, _paired(n_head))
    _start(made)
    made.keys.move("clip.vision.rope.freq_base", "clip.rope.freq_base")


def _paired(n_head: int) -> Make:
    """Return a function that puts rows of a head that rotate together next to each other."""

    def change(tensors: Sequence[Tensor]) -> list[Array]:
        (tensor,) = tensors
        rows = tensor.numpy().reshape(-1).view("u1").reshape(n_head, 2, tensor.shape[0] // n_head // 2, -1)
        return [rows.swapaxes(1, 2).copy()]

    return change


def _lfm2(made: Translation) -> None:
    for name, only in (("use_thumbnail", True), ("use_image_special_tokens", True), ("max_pixels_tolerance", 2.0)):
        key = f"clip.vision.{name}"
        if key in made.metadata and made.metadata[key] != only:
            raise LoadError(f"[gguf] unsupported 'vision.{name}': {made.metadata[key]!r:.40} (expected {only})")
        made.keys.remove(key)
    if not made.metadata.flag("clip.vision.do_image_splitting", True):
        made.set("vision.preproc_min_tiles", "u32", 1)
        made.set("vision.preproc_max_tiles", "u32", 1)
    unit = made.integer("vision.patch_size") * made.integer("vision.projector.scale_factor", 2)
    for edge in ("min", "max"):
        if tokens := made.integer(f"vision.{edge}_image_tokens"):
            made.set(f"vision.image_{edge}_pixels", "u32", min(tokens * unit**2, 2**31 - 1))
    _start(made)


def _llama4(made: Translation) -> None:
    ratio = made.metadata.number("clip.vision.pixel_shuffle_ratio", 0.5)
    if ratio > 0:
        made.set("vision.projector.scale_factor", "u32", round(1 / ratio))
    _start(made)


def _gemma4(made: Translation) -> None:
    made.tensors.remove("v.clamp_data")
    _start(made)


def _glmocr(made: Translation) -> None:
    for edge in ("min", "max"):  # in pixels of both frames of a pair
        if (name := f"clip.vision.image_{edge}_pixels") in made.metadata:
            made.keys.set(name, "u32", made.metadata.integer(name) // 2)
    _start(made)


_MLP = {"mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down", "norm1": "ln1", "norm2": "ln2"}
_QWEN3 = {
    "keys": {"vision.shortest_edge": "vision.image_min_pixels", "vision.longest_edge": "vision.image_max_pixels"},
    "unused": (*_UNUSED, "vision.window_size"),
    "defaults": {
        "projector_type": ("string", "qwen3vl_merger"),
        "use_gelu": ("bool", True),
        **_HALF_COLOURS,
        "vision.image_min_pixels": ("u32", 65536),
        "vision.image_max_pixels": ("u32", 16777216),
    },
    "tensors": {
        "v.pos_embed": "v.position_embd",
        "v.patch_embed": "v.patch_embd",
        "v.merger.norm": "v.post_ln",
        "v.merger.linear_fc1": "mm.0",
        "v.merger.linear_fc2": "mm.2",
        **_MLP,
    },
    "wanted": _is_vision,
    "change": _qwen3,
}
_SLICES = {"v.patch_embd_0.weight": "v.patch_embd.weight", "v.patch_embd_1.weight": "v.patch_embd.weight.1"}


def _has_vision(reader: GGUFReader) -> bool:
    return any(_is_vision(info.name) for info in reader.tensors)


def _encoder(old: str, **differences: object) -> _Encoder:
    return _Encoder("clip", old, fits=_has_vision, **{"wanted": _is_vision, **differences})  # type: ignore[arg-type]


FORMS: Mapping[str, Form] = {
    "gemma3": _encoder(
        "gemma3",
        unused=_UNUSED,
        defaults={
            "projector_type": ("string", "gemma3"),
            "use_gelu": ("bool", True),
            "vision.attention.layer_norm_epsilon": ("f32", 1e-6),
            **_HALF_COLOURS,
        },
        tensors={
            "v.patch_embedding": "v.patch_embd",
            "v.position_embedding": "v.position_embd",
            "v.post_layernorm": "v.post_ln",
            "layer_norm1": "ln1",
            "layer_norm2": "ln2",
            "attn_output": "attn_out",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
            "mm.mm_input_projection": "mm.input_projection",
            "mm.mm_soft_emb_norm": "mm.soft_emb_norm",
        },
        change=_gemma3,
    ),
    "gemma4": _encoder(
        "gemma4",
        unused=_UNUSED,
        defaults={"projector_type": ("string", "gemma4v"), "use_gelu": ("bool", True)},
        change=_gemma4,
    ),
    **{arch: _encoder(arch, **_QWEN3) for arch in ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")},
    "qwen25vl": _encoder(
        "qwen25vl",
        unused=_UNUSED,
        defaults={"projector_type": ("string", "qwen2.5vl_merger"), "use_silu": ("bool", True), **_CLIP_COLOURS},
        tensors={
            **_SLICES,
            "v.merger.ln_q": "v.post_ln",
            "v.merger.mlp.0": "mm.0",
            "v.merger.mlp.2": "mm.2",
        },
        change=_qwen25,
    ),
    "mistral3": _encoder(
        "mistral3",
        unused=("vision.num_channels", "vision.attention.key_length"),
        defaults={"projector_type": ("string", "pixtral"), "use_silu": ("bool", True), **_CLIP_COLOURS},
        tensors={
            "v.patch_conv": "v.patch_embd",
            "v.encoder_norm": "v.pre_ln",
            "attn_output": "attn_out",
            "attn_norm": "ln1",
            "ffn_norm": "ln2",
            "mm.linear_1": "mm.1",
            "mm.linear_2": "mm.2",
            "mm.norm": "mm.input_norm",
            "mm.patch_merger.merging_layer": "mm.patch_merger",
        },
        change=_mistral3,
    ),
    "glmocr": _encoder(
        "glmocr",
        keys={
            "vision.intermediate_size": "vision.feed_forward_length",
            "vision.out_hidden_size": "vision.projection_dim",
            "vision.attention.layer_norm_rms_epsilon": "vision.attention.layer_norm_epsilon",
            "vision.min_pixels": "vision.image_min_pixels",
            "vision.max_pixels": "vision.image_max_pixels",
        },
        unused=_UNUSED,
        defaults={"projector_type": ("string", "glm4v"), "use_silu": ("bool", True), **_CLIP_COLOURS},
        tensors=_SLICES,
        change=_glmocr,
    ),
    "lfm2": _encoder(
        "lfm2",
        keys={
            "vision.tile_size": "vision.preproc_image_size",
            "vision.min_tiles": "vision.preproc_min_tiles",
            "vision.max_tiles": "vision.preproc_max_tiles",
        },
        unused=(*_UNUSED, "vision.projector.use_layernorm", "vision.image_*token_id"),
        defaults={"projector_type": ("string", "lfm2"), "use_gelu": ("bool", True), **_HALF_COLOURS},
        tensors={"mm.layer_norm": "mm.input_norm"},
        change=_lfm2,
    ),
    "llama4": _encoder(
        "llama4",
        keys={"vision.layer_norm_epsilon": "vision.attention.layer_norm_epsilon"},
        unused=_UNUSED,
        defaults={"projector_type": ("string", "llama4"), "use_gelu": ("bool", True), **_HALF_COLOURS},
        tensors={
            "v.class_embedding": "v.class_embd",
            "v.positional_embedding_vlm": "v.position_embd.weight",
            "v.layernorm_pre": "v.pre_ln",
            "v.layernorm_post": "v.post_ln",
            "v.patch_embedding": "v.patch_embd",
            "v.vision_adapter.mlp.fc1": "mm.model.mlp.1",
            "v.vision_adapter.mlp.fc2": "mm.model.mlp.2",
            "mm.linear_1": "mm.model.fc",
            "attn_output": "attn_out",
            "attn_norm": "ln1",
            "ffn_norm": "ln2",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
        },
        change=_llama4,
    ),
    # The first files of LLaVA's encoders do not name their kind.
    "clip": Form(
        "clip",
        fits=lambda reader: (
            reader.metadata.flag("clip.has_vision_encoder", False)
            and not any(key.endswith("projector_type") for key in reader.metadata)
        ),
        defaults={"projector_type": ("string", "mlp")},
    ),
}
