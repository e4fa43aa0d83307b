"""Multimodal models: the mapping of their text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..reading.fields import Fields
from .checkpoint import Checkpoint

# Prefixes of transformers since 4.52, and of most published checkpoints.
HOMES = (("model.", "model.language_model."), ("", "language_model."))
OTHER_PARTS = ("vision_*", "audio_*", "multi_modal_projector", "multimodal_projector", "embed_vision", "embed_audio")
UNUSED = (
    "vision_config", "audio_config", "*_token_index", "*_soft_tokens_per_image", "mm_tokens_per_image", "vision_*",
    "audio_token_id", "projector_*", "multimodal_projector_bias", "spatial_merge_size", "language_model_only",
)  # fmt: skip


@dataclass(frozen=True)
class DeepStack(Checkpoint):
    """The mapping of Qwen3-VL's text model, whose first layers read features of several layers of the encoder."""

    def config_of(self, whole: Fields) -> Fields:
        """Return the configuration of the text model, with the number of those layers, which llama.cpp reads."""
        config = super().config_of(whole)
        encoder = whole.value("vision_config")
        layers = encoder.get("deepstack_visual_indexes") if isinstance(encoder, Mapping) else None
        return config.filled({"n_deepstack_layers": len(layers)}) if isinstance(layers, list) else config


@dataclass(frozen=True)
class Thinker(DeepStack):
    """The mapping of a model of several parts, whose ``thinker_config`` describes the part that writes text."""

    def config_of(self, whole: Fields) -> Fields:
        """Return the configuration of the text model."""
        return super().config_of(whole.inner("thinker_config") if whole.has("thinker_config") else whole)


def thinking(text: Checkpoint) -> Checkpoint:
    """Return the mapping of a model that contains a multimodal one as its thinker."""
    fields = vars(with_pictures(text))
    parts = {
        "homes": (*HOMES, ("model.", "thinker.model."), ("model.", "thinker.model.language_model."), ("", "thinker.")),
        "ignored": (*fields["ignored"], "talker.*", "token2wav.*", "code2wav.*", "*audio_tower.*", "*visual.*"),
        "unused": (
            *fields["unused"], "talker_config", "token2wav_config", "code2wav_config", "enable_*",
            "position_id_per_seconds", "seconds_per_chunk", "*_token_id", "*_token_index", "audio_*",
        ),
    }  # fmt: skip
    return Thinker(**{**fields, **parts})


def with_pictures(
    text: Checkpoint, *, tied: bool | None = None, defaults: Mapping[str, object] | None = None
) -> Checkpoint:
    """Return the mapping of a multimodal model whose text model is ``text``; its other parts are ignored.

    Args:
        text: The mapping of the text model.
        tied: Transformers' default of ``tie_word_embeddings``, if it differs from the text model's.
        defaults: Transformers' defaults of fields that published configurations omit.
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
