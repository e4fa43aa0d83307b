"""Read the configuration of Mistral's own folders: ``params.json``, beside ``consolidated*.safetensors``.

The fields become those of transformers' classes for the same models.  A field that is not known here is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import LoadError, UnsupportedError
from ...files.folders import MISTRAL_PARAMS as PARAMS
from .fields import Fields

__all__ = ["config_of_params", "image_settings"]

# Fields that do not change answers: limits of training and of Mistral's own program.
WITHOUT_EFFECT = ("max_batch_size", "max_seq_len", "model_type", "dtype", "lora", "use_cache", "transformers_version")
_ENCODER = {
    "hidden_size": 1024, "image_size": 1024, "patch_size": 16, "rope_theta": 10000.0, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_channels": 3,
}  # fmt: skip
_IMAGE_TOKENS = ("image_token_id", "image_break_token_id", "image_end_token_id")


def config_of_params(values: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration in transformers' words.

    Raises:
        LoadError: A field is missing or has a wrong type.
        UnsupportedError: A field that may change answers is unknown.
    """
    params = Fields(PARAMS, values)
    if (kind := params.text("model_type", "transformer")) not in ("transformer", "mistral"):
        raise UnsupportedError(f"[convert] unsupported 'model_type' of {PARAMS}: {kind:.40}")
    config = _text(params)
    if params.has("vision_encoder"):
        config = _with_images(params.inner("vision_encoder"), config)
    if params.has("quantization"):
        config["quantization_config"] = _quantization(params.inner("quantization"))
    params.refuse_unread(WITHOUT_EFFECT)
    return config


def image_settings(values: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a processor of images in transformers' words."""
    encoder = Fields(PARAMS, values).inner("vision_encoder")
    edge = encoder.integer("max_image_size", encoder.integer("image_size", 1024), low=1)
    return {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": edge}}


def _text(params: Fields) -> dict[str, object]:
    n_head, dim = params.integer("n_heads", low=1), params.integer("dim")
    for name, wanted in (("use_biases", False), ("causal", True)):
        if params.flag(name, wanted) != wanted:
            raise UnsupportedError(f"[convert] unsupported '{name}' of {PARAMS}: {params.value(name)}")
    config: dict[str, object] = {
        "hidden_size": dim,
        "num_hidden_layers": params.integer("n_layers"),
        "intermediate_size": params.integer("hidden_dim"),
        "num_attention_heads": n_head,
        "num_key_value_heads": params.integer("n_kv_heads", n_head, low=1),
        "head_dim": params.integer("head_dim", dim // n_head),
        "vocab_size": params.integer("vocab_size"),
        "rms_norm_eps": params.number("norm_eps"),
        "hidden_act": params.text("activation", "silu"),
        "tie_word_embeddings": params.flag("tied_embeddings", False),
        "max_position_embeddings": params.integer(
            "max_position_embeddings", params.integer("max_seq_len", 128_000), low=1
        ),
        "rope_parameters": {"rope_type": "default", "rope_theta": params.number("rope_theta")},
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if params.has("yarn"):
        return config | _stretched(params, params.number("rope_theta")) | _windows(params, layered=False)
    if params.has("llama_4_scaling"):
        raise UnsupportedError(f"[convert] 'llama_4_scaling' of {PARAMS} without 'yarn' is unsupported")
    if params.has("moe"):
        experts = params.inner("moe")
        found = {
            "num_local_experts": experts.integer("num_experts", low=1),
            "num_experts_per_tok": experts.integer("num_experts_per_tok", low=1),
        }
        return config | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **found} | _windows(params)
    if isinstance(params.value("sliding_window"), list):
        return config | {"architectures": ["MinistralForCausalLM"], "model_type": "ministral"} | _windows(params)
    return config | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"} | _windows(params)


def _stretched(params: Fields, theta: float) -> dict[str, object]:
    """Return the fields of a model with YaRN; with ``llama_4_scaling`` its queries also grow with their position."""
    yarn = params.inner("yarn")
    n_ctx = yarn.integer("original_max_position_embeddings", low=1)
    rope: dict[str, object] = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": yarn.number("factor"),
        "original_max_position_embeddings": n_ctx,
        "beta_fast": yarn.number("beta"),
        "beta_slow": yarn.number("alpha"),
    }
    if not yarn.flag("apply_scale", True):  # the two cancel each other
        rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    if params.has("moe"):
        raise UnsupportedError(f"[convert] 'moe' of {PARAMS} with 'yarn' is unsupported")
    if not params.has("llama_4_scaling"):
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_parameters": rope}
    growth = params.inner("llama_4_scaling")
    if growth.integer("original_max_position_embeddings", n_ctx) != n_ctx:
        raise UnsupportedError(
            f"[convert] unsupported 'original_max_position_embeddings' of {growth.where}: 'yarn' has another"
        )
    rope["llama_4_scaling_beta"] = growth.number("beta")
    return {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "rope_parameters": rope}


def _windows(params: Fields, *, layered: bool = True) -> dict[str, object]:
    """Return the fields of windows: one for all layers, or a list that is repeated over the layers; null: none."""
    value = params.value("sliding_window")
    if not isinstance(value, list):
        window = params.integer("sliding_window") if params.has("sliding_window") else None
        return {"sliding_window": window}
    if any(size is not None and type(size) is not int for size in value):
        raise LoadError(f"[convert] 'sliding_window' of {PARAMS} is {value!r:.80}: expected whole numbers or null")
    n_layer, sizes = params.integer("n_layers"), {size for size in value if size is not None}
    if not layered or len(sizes) > 1 or not value or n_layer % len(value):
        raise UnsupportedError(f"[convert] unsupported 'sliding_window' of {PARAMS}: {value!r:.80}")
    kinds = ["full_attention" if size is None else "sliding_attention" for size in value]
    return {"sliding_window": next(iter(sizes), None), "layer_types": kinds * (n_layer // len(value))}


def _with_images(encoder: Fields, text: dict[str, object]) -> dict[str, object]:
    """Return the configuration of a model with an encoder of images."""
    merge = encoder.integer("spatial_merge_size", 1, low=1)
    encoder.read((*_IMAGE_TOKENS, "max_image_size"))
    if (projector := encoder.text("mm_projector_id", "patch_merge" if merge > 1 else "")) not in ("", "patch_merge"):
        raise UnsupportedError(f"[convert] unsupported 'mm_projector_id' of {encoder.where}: {projector:.40}")
    if encoder.flag("add_pre_mm_projector_layer_norm", bool(projector)) != bool(projector):
        raise UnsupportedError(f"[convert] unsupported 'add_pre_mm_projector_layer_norm' of {encoder.where}")
    vision: dict[str, object] = {"model_type": "pixtral", "hidden_act": "silu"}
    for name, default in _ENCODER.items():
        is_real = isinstance(default, float)
        vision[name] = encoder.number(name, default) if is_real else encoder.integer(name, int(default), low=1)
    vision["rope_parameters"] = {"rope_type": "default", "rope_theta": vision.pop("rope_theta")}
    kind, arch = ("mistral3", "Mistral3") if projector else ("llava", "Llava")
    config: dict[str, object] = {
        "architectures": [f"{arch}ForConditionalGeneration"],
        "model_type": kind,
        "vision_config": vision,
        "text_config": {name: value for name, value in text.items() if name != "architectures"},
        "tie_word_embeddings": text["tie_word_embeddings"],
        "multimodal_projector_bias": encoder.flag("adapter_bias", False),
        "vision_feature_layer": -1,
        "projector_hidden_act": "gelu",
    }
    return config | ({"spatial_merge_size": merge} if projector else {"vision_feature_select_strategy": "full"})


def _quantization(found: Fields) -> dict[str, object]:
    """Return the settings of 8-bit floats with one scale for each matrix.  UnsupportedError for other formats."""
    form = found.text("qformat_weight", "")
    if form != "fp8_e4m3":
        raise UnsupportedError(f"[convert] unsupported 'qformat_weight' of {found.where}: '{form:.40}'")
    scheme = found.text("qscheme_act", "TENSOR")
    if scheme not in ("TENSOR", "NO_SCALES"):
        raise UnsupportedError(f"[convert] unsupported 'qscheme_act' of {found.where}: '{scheme:.40}'")
    return {"quant_method": "fp8", "activation_scheme": "dynamic" if scheme == "NO_SCALES" else "static"}
