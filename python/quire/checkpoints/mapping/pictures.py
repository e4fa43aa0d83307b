"""Models that also see pictures or hear: their text, which is a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .checkpoint import Checkpoint

# Transformers' names since 4.52, and those of most published checkpoints.
HOMES = (("model.", "model.language_model."), ("", "language_model."))
OTHER_PARTS = ("vision_*", "audio_*", "multi_modal_projector", "multimodal_projector", "embed_vision", "embed_audio")
UNUSED = (
    "vision_config", "audio_config", "*_token_index", "*_soft_tokens_per_image", "mm_tokens_per_image", "vision_*",
    "projector_*", "multimodal_projector_bias", "spatial_merge_size", "language_model_only",
)  # fmt: skip


def with_pictures(
    text: Checkpoint, *, tied: bool | None = None, defaults: Mapping[str, object] | None = None
) -> Checkpoint:
    """The checkpoint of a larger model that answers texts as ``text`` does; its other parts are not used.

    ``tied``: transformers' default of ``tie_word_embeddings``, where it is another than the text model's.
    ``defaults``: transformers' values of fields that published configurations leave out.
    """
    ignored = tuple(f"{base}{part}.*" for part in OTHER_PARTS for base in ("", "model."))
    return replace(
        text,
        section="text_config",
        tied=text.tied if tied is None else tied,
        homes=HOMES,
        ignored=(*text.ignored, *ignored),
        unused=(*text.unused, *UNUSED),
        defaults=defaults or {},
    )
