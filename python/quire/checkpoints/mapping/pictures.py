"""Multimodal models: the mapping of their text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...errors import UnsupportedError
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
class Inside(DeepStack):
    """The mapping of a multimodal model that is a part of a larger one, in whose section ``part`` it is described.

    ``kind``: its only supported ``model_type``; empty: the class has no other.
    """

    part: str = "thinker_config"
    kind: str = ""

    def config_of(self, whole: Fields) -> Fields:
        """Return the configuration of the text model.  UnsupportedError if the part is of another kind."""
        if not whole.has(self.part):
            return super().config_of(whole)
        inner = whole.inner(self.part)
        if self.kind and (found := inner.text("model_type", self.kind)) != self.kind:
            raise UnsupportedError(
                f"[convert] unsupported 'model_type' of {inner.where}: {found} (expected {self.kind})"
            )
        return super().config_of(inner)


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
    return Inside(**{**fields, **parts})


def retrieving(text: Checkpoint, kind: str) -> Checkpoint:
    """Return the mapping of a multimodal model with a vector for each token; ``kind``: its ``model_type``."""
    fields = vars(with_pictures(text))
    homes = (("model.", "vlm.language_model."), ("model.", "vlm.model.language_model."), ("model.", "vlm.model."))
    tensors = {ours: theirs for ours, theirs in text.tensors.items() if ours != "output"}
    parts = {
        "part": "vlm_config",
        "kind": kind,
        "tensors": {**tensors, "multi_head": "embedding_proj_layer"},
        "homes": (*homes, ("model.", "vlm.language_model.model.")),
        "ignored": (*fields["ignored"], "vlm.*visual.*", "vlm.*vision_tower.*", "vlm.*projector.*", "vlm.*lm_head.*"),
        "unused": (
            *fields["unused"], "embedding_dim", "*_token_id", "*_token_index", "vocab_size", "hidden_size",
            "projection_dim",
        ),
    }  # fmt: skip
    return Inside(**{**fields, **parts})


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
