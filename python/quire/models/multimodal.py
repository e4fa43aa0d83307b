"""Models of images and sounds whose text model is another architecture's: its mapping, found by ``model_type``.

Models with a text model of their own are in that architecture's file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..checkpoints.mapping import Checkpoint, Fields, reference_of, with_pictures
from ..checkpoints.mapping.pictures import HOMES
from ..checkpoints.reading.reference import classes_of
from ..errors import UnsupportedError
from .registry import checkpoint_of

_OTHER_PARTS = (
    "visual", "vision_tower", "vision_model", "vision_encoder", "vision_projection", "audio_tower", "encoder",
    "connector", "projector", "adaptor", "aligner", "merger", "multi_modal_projector", "mm_projector", "mm_projector_*",
)  # fmt: skip
_LONE = ("image_newline",)  # tensors without a module
_UNUSED = (
    "encoder_config", "projector_config", "adaptor_config", "token_classification_bias", "image_seq_length",
    "video_seq_length", "image_grid_pinpoints",
    "spatial_pool_*", "downsample_*", "adapter_*", "alignment_intermediate_size", "scale_factor", "projection_*",
    "image_size", "patch_size", "has_lora_adapter", "window_size", "insert_layer_id", "drop_vision_last_layer",
    "merge_kernel_size", "merger_times",
)  # fmt: skip


@dataclass(frozen=True)
class AnyText(Checkpoint):
    """A multimodal class whose text model depends on the checkpoint."""

    kind: str = ""  # transformers' default of the text model's model_type

    def chosen(self, whole: Fields) -> Checkpoint:
        """Return the mapping of the text model that config.json names."""
        text = whole.inner("text_config")
        kind = text.text("model_type", self.kind)
        kind = _KINDS.get(kind, kind)
        names = [name for name in classes_of(kind) if name.endswith("ForCausalLM")]
        if not names:
            raise UnsupportedError(f"[convert] unsupported text model '{kind}' of {whole.where}")
        defaults = {name: value for name, value in reference_of(names[0]).effect.items() if value is not None}
        found = with_pictures(checkpoint_of(names[0]), tied=self.tied, defaults={**defaults, **self.defaults})
        lone = tuple(f"{base}{name}" for name in _LONE for base in ("", "model.", "language_model.model."))
        parts = tuple(f"{base}{part}.*" for part in _OTHER_PARTS for base in ("", "model."))
        return replace(
            found,
            homes=(*HOMES, ("", "model.language_model."), *self.homes),
            ignored=(*found.ignored, *parts, *lone),
            unused=(*found.unused, *_UNUSED, *self.unused),
        )


_KINDS = {"kimi_k2": "deepseek_v3"}  # other names of model_type
_ARCHES = {"deepseek_v3": "deepseek2", "qwen3_5_text": "qwen35"}  # by model_type, if the names differ


def _of(kind: str, **fields: object) -> AnyText:
    """Return the mapping of a multimodal class with the default text model ``kind``."""
    return AnyText(_ARCHES.get(kind, kind), {}, {}, kind=kind, **fields)  # type: ignore[arg-type]


_TEXT_MODEL = (("model.", "model.text_model."),)
_ROUGH = {"rms_norm_eps": 1e-5}
_LIGHT_ON = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
}  # fmt: skip
_FUN_ASR = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "max_position_embeddings": 40960,
}  # fmt: skip
_GOT_OCR = {
    "vocab_size": 151860, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "rope_theta": 1e6,
}  # fmt: skip
_GLM_ASR = {
    "vocab_size": 59264, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
}  # fmt: skip
_QWEN2_AUDIO = {"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_key_value_heads": 32}
_QWEN3_ASR = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 65536,
}  # fmt: skip
_VOXTRAL = {
    "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e8,
    "head_dim": 128,
}  # fmt: skip
_HCX_VISION = (
    "anyres", "unpad", "max_num_grids", "num_queries_vis_abstractor*", "mm_projector_type", "possible_resolutions",
    "use_1x1_grid", "use_nth_layer", "proj_*", "ignore_index", "decoder_max_length", "freeze_*", "vision_*", "video_*",
    "max_image_cnt", "language_config", "q_former_*", "img_start_id", "text_model_name_or_path", "model_kwargs", "*_id",
)  # fmt: skip

# --- checkpoint ---

HF = {
    "LlavaForConditionalGeneration": _of("llama"),
    "LlavaNextForConditionalGeneration": _of("llama"),
    "LlavaNextVideoForConditionalGeneration": _of("llama"),
    "LlavaOnevisionForConditionalGeneration": _of("qwen2"),
    "VipLlavaForConditionalGeneration": _of("llama"),
    "InternVLForConditionalGeneration": _of("qwen2", tied=True),
    "SmolVLMForConditionalGeneration": _of("llama", homes=_TEXT_MODEL, defaults=_ROUGH),
    "Idefics3ForConditionalGeneration": _of("llama", homes=_TEXT_MODEL, defaults=_ROUGH),
    "Lfm2VlForConditionalGeneration": _of("lfm2", tied=True),
    "Lfm3VlForConditionalGeneration": _of("lfm3", tied=True),
    "LightOnOcrForConditionalGeneration": _of("qwen3", tied=True, defaults=_LIGHT_ON),
    "AyaVisionForConditionalGeneration": _of("cohere2", tied=True),
    "Cohere2VisionForConditionalGeneration": _of("cohere2", tied=True),
    "MiniCPMV4_6ForConditionalGeneration": _of("qwen3_5_text"),
    "AudioFlamingo3ForConditionalGeneration": _of("qwen2", tied=True),
    "MusicFlamingoForConditionalGeneration": _of(
        "qwen2", tied=True, unused=("rope_parameters", "head_dim", "audio_*", "max_position_embeddings")
    ),
    "Qwen2AudioForConditionalGeneration": _of("qwen2", defaults=_QWEN2_AUDIO),
    "Qwen3ASRForConditionalGeneration": _of("qwen3", tied=True, defaults=_QWEN3_ASR, unused=("timestamp_token_id",)),
    "VoxtralForConditionalGeneration": _of("llama", defaults=_VOXTRAL, unused=("hidden_size",)),
    "GlmAsrForConditionalGeneration": _of("llama", tied=True, defaults=_GLM_ASR),
    "FunAsrNanoForConditionalGeneration": _of("qwen3", tied=True, defaults=_FUN_ASR),
    "GotOcr2ForConditionalGeneration": _of("qwen2", tied=True, defaults=_GOT_OCR),
    "VideoLlama3ForConditionalGeneration": _of("qwen2"),
    "DeepseekVLForConditionalGeneration": _of("llama", tied=True),
    "GraniteSpeechPlusForConditionalGeneration": _of("granite", tied=True),
    "GraniteSpeechForConditionalGeneration": _of("granite", tied=True),
    "KimiK25ForConditionalGeneration": _of("deepseek_v3", tied=True),
    "Exaone4_5_ForConditionalGeneration": _of("exaone4"),
    "HyperCLOVAXVisionV2ForConditionalGeneration": _of("hyperclovax", tied=True),
    "HCXVisionForCausalLM": _of("llama", unused=_HCX_VISION),
    "Kimi_K25ForConditionalGeneration": _of("deepseek_v3", tied=True),
}
