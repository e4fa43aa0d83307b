"""Model files as Ollama's converter writes them: text models from llama.cpp's form, encoders from checkpoints.

The names of an encoder's tensors follow from the converter's lists of replacements, its keys from its tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from quire.gguf import GGUFReader, GGUFWriter
from quire.safetensors import SafetensorsFile

Array = npt.NDArray[Any]
Tensors = dict[str, Array]
Keys = dict[str, tuple[str, Any]]
Config = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """How Ollama writes a family.

    Attributes:
        arch: Its name of the architecture.
        keys: Its names of the text model's keys; None for those that it does not write.
        more: Keys that only it writes, from config.json, with their types.
        tensors: Its names of the text model's tensors, without the number of the layer.
        change: Changes the text model's tensors.
        replacements: ``old new ...`` in the names of the encoder's tensors; ``-`` is nothing.
        vision: Changes the encoder's tensors.
        vocabulary: Keys of the vocabulary that differ.
    """

    arch: str
    keys: Mapping[str, str | None] = field(default_factory=dict)
    more: Callable[[Config], Keys] = lambda config: {}
    tensors: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Tensors], Tensors] = lambda tensors: tensors
    replacements: str = ""
    vision: Callable[[Tensors], Tensors] = lambda tensors: tensors
    vocabulary: Callable[[GGUFReader], Keys] = lambda reader: {}


def replaced(name: str, replacements: str) -> str:
    """Replace in one pass, as Go's ``strings.Replacer`` does: at each place the first pair that fits."""
    words = replacements.split()
    pairs = {old: "" if new == "-" else new for old, new in zip(words[::2], words[1::2], strict=True)}
    return re.sub("|".join(map(re.escape, pairs)), lambda match: pairs[match[0]], name)


def write_ollama_file(folder: Path, text: Path, out: Path, family: Family) -> Path:
    """Write a model in Ollama's form.

    Args:
        folder: The checkpoint.
        text: Its text model as a file of f32 in llama.cpp's form.
        out: The new file.
        family: How it is written.
    """
    config = json.loads((folder / "config.json").read_text())
    reader = GGUFReader(text)
    arch = reader.metadata.text("general.architecture")
    keys: Keys = {}
    for key in reader.metadata:
        kind = reader.metadata.type_of(key)
        name = key.removeprefix(f"{arch}.")
        new = family.keys.get(name, name) if name != key else key
        if new is not None:
            value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
            keys[f"{family.arch}.{new}" if name != key else key] = kind, value
    keys |= {f"{family.arch}.{key}": entry for key, entry in family.more(config).items()}
    keys |= family.vocabulary(reader)
    tensors: Tensors = {}
    for info in reader.tensors:
        block, rest = re.fullmatch(r"(blk\.\d+\.)?(.*)", info.name).groups(default="")  # type: ignore[union-attr]
        tensors[block + family.tensors.get(rest, rest)] = reader.tensor(info.name).numpy()
    tensors = family.change(tensors)
    if family.replacements:
        files = [SafetensorsFile(path) for path in sorted(folder.glob("*.safetensors"))]
        stored = {name: file.array(name) for file in files for name in file}
        named = {replaced(name, family.replacements): x for name, x in stored.items()}
        tensors |= family.vision({name: x for name, x in named.items() if name.startswith(("v.", "mm."))})
    with GGUFWriter(out, family.arch) as writer:
        for key, (kind, value) in keys.items():
            if key != "general.architecture":
                writer.set(key, value, kind)
        for name, x in tensors.items():
            writer.add_tensor(name, "f32", x.shape)
        for name, x in tensors.items():
            writer.write(name, np.ascontiguousarray(x, np.float32))
    return out


def sizes(config: Config, names: str) -> Keys:
    """Return keys of u32 from fields of the encoder's configuration: ``key field ...``."""
    words = names.split()
    vision = config["vision_config"]
    return {f"vision.{key}": ("u32", vision[name]) for key, name in zip(words[::2], words[1::2], strict=True)}


def thirds(tensors: Tensors, joined: str) -> Tensors:
    """Split q, k and v, which the converter writes as three tensors."""
    found: Tensors = {}
    for name, x in tensors.items():
        if joined not in name:
            found[name] = x
            continue
        for letter, part in zip("qkv", np.split(x, 3), strict=True):
            found[name.replace(joined, f"attn_{letter}")] = part
    return found


def _qwen3_vision(tensors: Tensors) -> Tensors:
    kernel = tensors.pop("v.patch_embed.weight")
    return {**thirds(tensors, "attn_qkv"), "v.patch_embed.weight": kernel.reshape(-1, *kernel.shape[2:])}


def _qwen25_vision(tensors: Tensors) -> Tensors:
    kernel = tensors.pop("v.patch_embed.proj.weight")
    frames = {f"v.patch_embd_{i}.weight": kernel[:, :, i] for i in range(2)}
    return {**thirds(tensors, "attn.qkv"), **frames}


def _glm_vision(tensors: Tensors) -> Tensors:
    kernel = tensors.pop("v.patch_embd.weight")
    return {**tensors, **{f"v.patch_embd_{i}.weight": kernel[:, :, i] for i in range(2)}}


def _glm_text(tensors: Tensors) -> Tensors:
    found: Tensors = {}
    for name, x in tensors.items():
        if "ffn_up" in name:
            found[name.replace("ffn_up", "ffn_gate")], found[name] = np.split(x, 2)
        else:
            found[name] = x
    return found


def _gemma_vision(tensors: Tensors) -> Tensors:
    name = "mm.mm_soft_emb_norm.weight"  # the converter adds 1 to all norms outside the encoder
    found = {name: x for name, x in tensors.items() if ".head." not in name}
    return {**found, name: found[name] + 1}


def _gemma4_vision(tensors: Tensors) -> Tensors:
    kernel = tensors.pop("v.patch_embd.weight")
    side = int((kernel.shape[1] // 3) ** 0.5)
    found = {name: x.reshape(1) if x.ndim == 0 else x for name, x in tensors.items()}
    renamed = (
        "attn_norm ln1 ffn_norm ln2 attn_output attn_out post_attention_norm attn_post_norm post_ffw_norm ffn_post_norm"
    )
    found = {replaced(name, renamed): x for name, x in found.items()}
    kernel = kernel.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    return {**found, "v.patch_embd.weight": kernel, "v.clamp_data": np.zeros(4, np.float32)}


def _lfm2_vision(tensors: Tensors) -> Tensors:
    kernel = tensors.pop("v.patch_embd.weight")
    side = int((kernel.shape[1] // 3) ** 0.5)
    return {**tensors, "v.patch_embd.weight": kernel.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)}


def _padded_vocabulary(reader: GGUFReader) -> Keys:
    """Add tokens of images without embeddings."""
    tokens = [*reader.metadata.strings("tokenizer.ggml.tokens"), *(b"<image%d>" % i for i in range(3))]
    types = [*reader.metadata.array("tokenizer.ggml.token_type").tolist(), 3, 3, 3]
    return {"tokenizer.ggml.tokens": ("string[]", tokens), "tokenizer.ggml.token_type": ("i32[]", types)}


def _with_pre(name: str) -> Callable[[GGUFReader], Keys]:
    return lambda reader: {"tokenizer.ggml.pre": ("string", name)}


def _joined_gates(tensors: Tensors) -> Tensors:
    """Join gates and ups of experts, which alternate, and q, k and v."""
    found = {name: x for name, x in tensors.items() if not re.search(r"ffn_(gate|up)_exps|attn_[qkv]\.", name)}
    for i in range(3):
        for suffix in ("weight", "bias"):
            gate, up = (tensors[f"blk.{i}.ffn_{name}_exps.{suffix}"] for name in ("gate", "up"))
            both = np.stack([gate, up], 2)
            found[f"blk.{i}.ffn_gate_up_exps.{suffix}"] = both.reshape(len(gate), -1, *gate.shape[2:])
            found[f"blk.{i}.attn_qkv.{suffix}"] = np.concatenate([tensors[f"blk.{i}.attn_{x}.{suffix}"] for x in "qkv"])
    return found


_YARN = {
    "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
    "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
}
_SECTIONS = {"rope.dimension_sections": None}


def _sections(config: Config) -> Keys:
    text = config.get("text_config", config)
    return {"rope.mrope_section": ("i32[]", text["rope_parameters"]["mrope_section"])}


_QWEN3_SIZES = (
    "block_count depth embedding_length hidden_size attention.head_count num_heads patch_size patch_size "
    "spatial_merge_size spatial_merge_size temporal_patch_size temporal_patch_size"
)
_QWEN3_NAMES = (
    "model.visual v patch_embed.proj patch_embed blocks blk attn.qkv attn_qkv attn.proj attn_out "
    "deepstack_merger_list deepstack_merger"
)


def _qwen3_vision_keys(config: Config) -> Keys:
    return {
        **sizes(config, _QWEN3_SIZES),
        "vision.num_channels": ("u32", 3),
        "vision.rope.freq_base": ("f32", 1e4),
        "vision.attention.layer_norm_epsilon": ("f32", 1e-6),
        "vision.deepstack_visual_indexes": ("i32[]", config["vision_config"].get("deepstack_visual_indexes", [])),
        "vision.shortest_edge": ("u32", 64),
        "vision.longest_edge": ("u32", 4096),
        "vision.image_mean": ("f32[]", [0.5] * 3),
        "vision.image_std": ("f32[]", [0.5] * 3),
    }


# By the name of the tiny checkpoint.
FAMILIES: dict[str, Family] = {
    "gemma3": Family(
        "gemma3",
        {"rope.freq_base_swa": "rope.local.freq_base"},
        vocabulary=_padded_vocabulary,
    ),
    "gemma3-vl": Family(
        "gemma3",
        {"rope.freq_base": None, "rope.freq_base_swa": None, "attention.layer_norm_rms_epsilon": None},
        lambda config: {
            "mm.tokens_per_image": ("u32", config["mm_tokens_per_image"]),
            **sizes(
                config,
                "block_count num_hidden_layers embedding_length hidden_size feed_forward_length intermediate_size "
                "attention.head_count num_attention_heads image_size image_size patch_size patch_size",
            ),
            "vision.num_channels": ("u32", 3),
            "vision.attention.layer_norm_epsilon": ("f32", 1e-6),
        },
        replacements=(
            "vision_tower.embeddings v vision_tower v encoder.layers blk self_attn.q_proj attn_q self_attn.k_proj attn_k "
            "self_attn.v_proj attn_v self_attn.out_proj attn_output input_projection_weight input_projection.weight "
            "multi_modal_projector mm"
        ),
        vision=_gemma_vision,
    ),
    "gemma3n": Family(
        "gemma3n",
        {
            "rope.freq_base_swa": "rope.freq_base_local",
            "attention.key_length": "head_dim",
            "attention.value_length": None,
        },
    ),
    "gemma4-moe": Family("gemma4", tensors={"ffn_down_exps.scale": "ffn_gate_inp.per_expert_scale"}),
    "gemma4-vl": Family(
        "gemma4",
        more=lambda config: {
            **sizes(
                config,
                "block_count num_hidden_layers embedding_length hidden_size feed_forward_length intermediate_size "
                "attention.head_count num_attention_heads patch_size patch_size "
                "projector.scale_factor pooling_kernel_size",
            ),
            "vision.num_channels": ("u32", 3),
            "vision.attention.layer_norm_epsilon": ("f32", 1e-6),
            "audio.block_count": ("u32", 1),
        },
        replacements=(
            ".linear.weight .weight model.vision_tower.encoder.layers v.blk "
            "model.vision_tower.patch_embedder.input_proj v.patch_embd "
            "model.vision_tower.patch_embedder.position_embedding_table v.position_embd.weight "
            "model.vision_tower.std_bias v.std_bias model.vision_tower.std_scale v.std_scale "
            "model.embed_vision.embedding_projection mm.input_projection self_attn.q_proj attn_q self_attn.q_norm attn_q_norm "
            "self_attn.k_proj attn_k self_attn.k_norm attn_k_norm self_attn.v_proj attn_v self_attn.o_proj attn_output "
            "mlp.gate_proj ffn_gate mlp.down_proj ffn_down mlp.up_proj ffn_up input_layernorm attn_norm "
            "post_attention_layernorm post_attention_norm pre_feedforward_layernorm ffn_norm "
            "post_feedforward_layernorm post_ffw_norm"
        ),
        vision=_gemma4_vision,
        vocabulary=lambda reader: {},
    ),
    "lfm2-vl": Family(
        "lfm2",
        more=lambda config: {
            **sizes(
                config,
                "block_count num_hidden_layers embedding_length hidden_size feed_forward_length intermediate_size "
                "attention.head_count num_attention_heads patch_size patch_size",
            ),
            "vision.attention.layer_norm_epsilon": ("f32", 1e-6),
            "vision.num_channels": ("u32", 3),
            "vision.image_size": ("u32", 32),
            "vision.projector.scale_factor": ("u32", 2),
            "vision.projector.use_layernorm": ("bool", True),
            "vision.do_image_splitting": ("bool", True),
            "vision.min_tiles": ("u32", 2),
            "vision.max_tiles": ("u32", 6),
            "vision.tile_size": ("u32", 64),
            "vision.min_image_tokens": ("u32", 4),
            "vision.max_image_tokens": ("u32", 16),
            "vision.max_pixels_tolerance": ("f32", 2.0),
            "vision.use_thumbnail": ("bool", True),
            "vision.use_image_special_tokens": ("bool", True),
            "vision.image_token_id": ("u32", 259),
        },
        tensors={"token_embd_norm.weight": "output_norm.weight"},
        replacements=(
            "model.vision_tower.vision_model.embeddings.patch_embedding v.patch_embd "
            "model.vision_tower.embeddings.patch_embedding v.patch_embd "
            "model.vision_tower.embeddings.position_embedding v.position_embd model.vision_tower.encoder.layers v.blk "
            "model.vision_tower.post_layernorm v.post_ln model.multi_modal_projector.layer_norm mm.layer_norm "
            "model.multi_modal_projector.linear_1 mm.1 model.multi_modal_projector.linear_2 mm.2 self_attn.q_proj attn_q "
            "self_attn.k_proj attn_k self_attn.v_proj attn_v self_attn.out_proj attn_out layer_norm1 ln1 layer_norm2 ln2 "
            "mlp.fc1 ffn_up mlp.fc2 ffn_down"
        ),
        vision=_lfm2_vision,
        vocabulary=_with_pre("default"),
    ),
    "llama4-vl": Family(
        "llama4",
        {"expert_feed_forward_length": None, "feed_forward_length": None},
        lambda config: {
            "intermediate_size": ("u32", config["text_config"]["intermediate_size_mlp"]),
            "intermediate_size_moe": ("u32", config["text_config"]["intermediate_size"]),
            **sizes(
                config,
                "block_count num_hidden_layers embedding_length hidden_size feed_forward_length intermediate_size "
                "attention.head_count num_attention_heads image_size image_size patch_size patch_size",
            ),
            "vision.rope.freq_base": ("f32", 1e4),
            "vision.layer_norm_epsilon": ("f32", 1e-5),
            "vision.pixel_shuffle_ratio": ("f32", 0.5),
        },
        replacements=(
            "vision_model.model.layers v.blk vision_model v multi_modal_projector mm patch_embedding.linear patch_embedding "
            "self_attn.q_proj attn_q self_attn.k_proj attn_k self_attn.v_proj attn_v self_attn.o_proj attn_output "
            "input_layernorm attn_norm post_attention_layernorm ffn_norm"
        ),
    ),
    "gpt-oss": Family(
        "gptoss",
        {"rope.scaling.type": None, "expert_feed_forward_length": None},
        tensors={
            "attn_output.weight": "attn_out.weight",
            "attn_output.bias": "attn_out.bias",
            "attn_sinks.weight": "attn_sinks",
            "post_attention_norm.weight": "ffn_norm.weight",
        },
        change=_joined_gates,
        vocabulary=_with_pre("default"),
    ),
    "lfm2": Family("lfm2", tensors={"token_embd_norm.weight": "output_norm.weight"}, vocabulary=_with_pre("default")),
    "olmo3": Family("olmo3"),
    "mistral3": Family(
        "mistral3",
        {
            **_YARN,
            "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
            "attention.temperature_scale": "rope.scaling_beta",
        },
        vocabulary=_with_pre("default"),
    ),
    "mistral3-vl": Family(
        "mistral3",
        more=lambda config: {
            "image_token_index": ("u32", config["image_token_index"]),
            "spatial_merge_size": ("u32", config["spatial_merge_size"]),
            "mm.projector_bias": ("bool", False),
            "mm.projector_hidden_act": ("string", "gelu"),
            **sizes(
                config,
                "block_count num_hidden_layers embedding_length hidden_size feed_forward_length intermediate_size "
                "attention.head_count num_attention_heads attention.key_length head_dim image_size image_size "
                "patch_size patch_size",
            ),
            "vision.num_channels": ("u32", 3),
            "vision.rope.freq_base": ("f32", 1e4),
        },
        replacements=(
            "transformer.layers blk vision_tower v ln_pre encoder_norm attention.q_proj attn_q attention.k_proj attn_k "
            "attention.v_proj attn_v attention.o_proj attn_output attention_norm attn_norm feed_forward.gate_proj ffn_gate "
            "feed_forward.down_proj ffn_down feed_forward.up_proj ffn_up multi_modal_projector mm"
        ),
    ),
    "qwen35-vl": Family(
        "qwen35",
        _SECTIONS,
        lambda config: {
            **_sections(config),
            "rope.mrope_interleaved": ("bool", True),
            "ssm.v_head_reordered": ("bool", True),
            "image_token_id": ("u32", 268),
            "vision_start_token_id": ("u32", 270),
            **_qwen3_vision_keys(config),
        },
        {"ssm_dt.bias": "ssm_dt"},
        replacements=_QWEN3_NAMES,
        vision=_qwen3_vision,
    ),
    "qwen3next": Family(
        "qwen3next",
        {"attention.recurrent_layers": None, "full_attention_interval": None},
        lambda config: {
            "attention.head_count_kv": ("u32[]", [2 * (kind == "full_attention") for kind in config["layer_types"]])
        },
        {"ssm_dt.bias": "ssm_dt"},
    ),
    "qwen3vl": Family(
        "qwen3vl",
        {**_SECTIONS, "n_deepstack_layers": None},
        lambda config: {**_sections(config), **_qwen3_vision_keys(config)},
        replacements=_QWEN3_NAMES,
        vision=_qwen3_vision,
    ),
    "qwen2vl-2.5": Family(
        "qwen25vl",
        _SECTIONS,
        lambda config: {
            **_sections(config),
            **sizes(config, f"{_QWEN3_SIZES} window_size window_size"),
            "vision.num_channels": ("u32", 3),
            "vision.attention.layer_norm_epsilon": ("f32", 1e-6),
            "vision.rope.freq_base": ("f32", 1e4),
            "vision.fullatt_block_indexes": ("i32[]", config["vision_config"]["fullatt_block_indexes"]),
        },
        replacements=(
            "visual v blocks blk attn.proj attn_out norm1 ln1 norm2 ln2 mlp.down_proj ffn_down mlp.gate_proj ffn_gate "
            "mlp.up_proj ffn_up"
        ),
        vision=_qwen25_vision,
    ),
    "glm_ocr": Family(
        "glmocr",
        {**_SECTIONS, "rope.dimension_count": None},
        lambda config: {
            **_sections(config),
            "rope.partial_rotary_factor": ("f32", 1.0),
            "image_token_id": ("u32", 268),
            **sizes(
                config,
                "block_count depth embedding_length hidden_size attention.head_count num_heads patch_size patch_size "
                "image_size image_size spatial_merge_size spatial_merge_size temporal_patch_size temporal_patch_size "
                "out_hidden_size out_hidden_size intermediate_size intermediate_size",
            ),
            "vision.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
            "vision.min_pixels": ("u32", 128),
            "vision.max_pixels": ("u32", 8192),
            "vision.image_mean": ("f32[]", [0.48145466, 0.4578275, 0.40821073]),
            "vision.image_std": ("f32[]", [0.26862954, 0.26130258, 0.27577711]),
        },
        {
            "attn_output.weight": "attn_out.weight",
            "post_attention_norm.weight": "post_attn_norm.weight",
            "post_ffw_norm.weight": "post_ffn_norm.weight",
        },
        _glm_text,
        replacements=(
            "model.visual.patch_embed.proj v.patch_embd model.visual.blocks v.blk model.visual.post_layernorm v.post_ln "
            "model.visual.downsample mm.patch_merger attn.qkv attn_qkv attn.proj attn_out attn.q_norm attn_q_norm "
            "attn.k_norm attn_k_norm norm1 ln1 norm2 ln2 mlp.gate_proj ffn_gate mlp.up_proj ffn_up mlp.down_proj ffn_down "
            "model.visual.merger.proj mm.model.fc model.visual.merger.post_projection_norm mm.post_norm "
            "model.visual.merger.gate_proj mm.gate model.visual.merger.up_proj mm.up model.visual.merger.down_proj mm.down"
        ),
        vision=_glm_vision,
    ),
    "deepseek2-glm": Family(
        "glm4moelite",
        {
            "attention.key_length": None,
            "attention.value_length": None,
            "attention.head_count_kv": None,
            "attention.key_length_mla": "attention.key_length",
            "attention.value_length_mla": "attention.value_length",
            "expert_group_count": None,
            "expert_group_used_count": None,
        },
        lambda config: {"attention.head_count_kv": ("u32", config["num_attention_heads"])},
    ),
    "llama4": Family(
        "llama4",
        {"expert_feed_forward_length": None, "feed_forward_length": None},
        lambda config: {
            "intermediate_size": ("u32", config["intermediate_size_mlp"]),
            "intermediate_size_moe": ("u32", config["intermediate_size"]),
            "feed_forward_length": ("u32", config["intermediate_size"]),
            "use_qk_norm": ("bool", True),
        },
    ),
    "nemotron_h_moe": Family(
        "nemotron_h_moe",
        {"moe_latent_size": None},
        tensors={"ffn_latent_down.weight": "ffn_latent_in.weight", "ffn_latent_up.weight": "ffn_latent_out.weight"},
    ),
}
