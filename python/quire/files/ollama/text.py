"""The text models of Ollama's files, by Ollama's name of the architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..gguf import GGUFReader
from .form import Form
from .text_changes import (
    MODEL,
    PRE,
    bert,
    gemma3,
    gemma3n,
    gemma4,
    glm4moelite,
    glmocr,
    gptoss,
    is_ollamas_gemma3,
    is_text,
    lfm2,
    llama,
    llama4,
    mistral3,
    nemotron_h,
    one_count,
    qwen3vl,
    qwen35,
    with_sections,
)

__all__ = ["FORMS"]


def _omni_arch(reader: GGUFReader) -> str:
    has_experts = reader.metadata.integer("nemotron_h_omni.expert_count", 0)
    return "nemotron_h_moe" if has_experts else "nemotron_h"


class _Omni(Form):
    """Its text model has experts or not."""

    def translated(self, reader: GGUFReader) -> GGUFReader:
        arch = _omni_arch(reader)
        return Form(arch, self.old, tensors=self.tensors, wanted=self.wanted, change=self.change).translated(reader)


def _names(reader: GGUFReader) -> list[str]:
    return [info.name for info in reader.tensors]


def _has_key(key: str, kind: str) -> Callable[[GGUFReader], bool]:
    return lambda reader: key in reader.metadata and reader.metadata.type_of(key) == kind


_LATENT = {"ffn_latent_in": "ffn_latent_down", "ffn_latent_out": "ffn_latent_up"}
_QWEN_UNUSED = ("image_token_id", "vision_*_token_id", "rope.mrope_interleaved")
_QWEN35 = {
    "keys": {"norm_top_k_prob": "expert_weights_norm"},
    "unused": _QWEN_UNUSED,
    "tensors": {"ssm_dt": "ssm_dt.bias"},
    "wanted": is_text,
    "change": qwen35,
}
_QWEN3VL = {"unused": _QWEN_UNUSED, "keys": {"norm_top_k_prob": "expert_weights_norm"}, "wanted": is_text}
_YARN = {
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor",
}

FORMS: Mapping[str, Form] = {
    "gemma3": Form(
        "gemma3",
        fits=is_ollamas_gemma3,
        keys={"rope.global.freq_base": "rope.freq_base", "rope.local.freq_base": "rope.freq_base_swa", **_YARN},
        defaults={
            "attention.layer_norm_rms_epsilon": ("f32", 1e-6),
            "rope.freq_base": ("f32", 1e6),
            "rope.freq_base_swa": ("f32", 1e4),
        },
        wanted=is_text,
        change=gemma3,
    ),
    "gemma3n": Form(
        "gemma3n",
        keys={"rope.freq_base_local": "rope.freq_base_swa", "head_dim": "attention.key_length"},
        unused=("altup.correct_scale", "altup.lr_multiplier"),
        wanted=is_text,
        change=gemma3n,
    ),
    "gemma4": Form(
        "gemma4", tensors={"ffn_gate_inp.per_expert_scale": "ffn_down_exps.scale"}, wanted=is_text, change=gemma4
    ),
    "qwen25vl": Form("qwen2vl", "qwen25vl", wanted=is_text, change=with_sections),
    "qwen3vl": Form("qwen3vl", **_QWEN3VL, change=qwen3vl),  # type: ignore[arg-type]
    "qwen3vlmoe": Form("qwen3vlmoe", **_QWEN3VL, change=qwen3vl),  # type: ignore[arg-type]
    "qwen35": Form("qwen35", **_QWEN35),  # type: ignore[arg-type]
    "qwen35moe": Form("qwen35moe", **_QWEN35),  # type: ignore[arg-type]
    "qwen3next": Form("qwen3next", tensors={"ssm_dt": "ssm_dt.bias"}, wanted=is_text, change=one_count),
    "gptoss": Form(
        "gpt-oss",
        "gptoss",
        defaults={"rope.scaling.type": ("string", "yarn")},
        tensors={"attn_out": "attn_output", "attn_sinks": "attn_sinks.weight", "ffn_norm": "post_attention_norm"},
        change=gptoss,
    ),
    "lfm2": Form(
        "lfm2",
        fits=lambda reader: "token_embd_norm.weight" not in reader,
        tensors={"output_norm": "token_embd_norm"},
        wanted=is_text,
        change=lfm2,
    ),
    "olmo3": Form("olmo2", "olmo3", keys=_YARN),
    "mistral3": Form(
        "mistral3",
        keys={
            **_YARN,
            "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
            "rope.scaling_beta": "attention.temperature_scale",
        },
        unused=("image_token_index", "spatial_merge_size", "rope.scaling.mscale"),
        wanted=is_text,
        change=mistral3,
    ),
    "llama4": Form(
        "llama4",
        fits=lambda reader: "llama4.intermediate_size" in reader.metadata or not all(map(is_text, _names(reader))),
        unused=("use_qk_norm",),
        wanted=is_text,
        change=llama4,
    ),
    "glm4moelite": Form(
        "deepseek2",
        "glm4moelite",
        defaults={"expert_group_count": ("u32", 1), "expert_group_used_count": ("u32", 1)},
        change=glm4moelite,
    ),
    "glmocr": Form(
        "glm4",
        "glmocr",
        unused=("rope.partial_rotary_factor", "image_*token_id", "video_*token_id"),
        tensors={"attn_out": "attn_output", "post_attn_norm": "post_attention_norm", "post_ffn_norm": "post_ffw_norm"},
        wanted=is_text,
        change=glmocr,
    ),
    "laguna": Form(
        "laguna",
        keys={
            "rope.swa.dimension_count": "rope.dimension_count_swa",
            "rope.swa.freq_base": "rope.freq_base_swa",
        },
        tensors={"attn_g": "attn_gate"},
    ),
    "nemotron_h_moe": Form("nemotron_h_moe", tensors=_LATENT, wanted=is_text, change=nemotron_h),
    "nemotron_h_omni": _Omni("nemotron_h", "nemotron_h_omni", tensors=_LATENT, wanted=is_text, change=nemotron_h),
    "llama": Form(
        "llama",
        fits=lambda reader: (
            reader.metadata.text(MODEL, "") == "gpt2" and reader.metadata.text(PRE, "") in ("", "default")
        ),
        change=llama,
    ),
    "bert": Form("bert", fits=_has_key("tokenizer.ggml.precompiled_charsmap", "string[]"), change=bert),
}
