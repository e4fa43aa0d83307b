"""Mistral's own folders become the files that the same weights become in transformers' form."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion.projector import convert_projector
from quire.checkpoints.reading import checkpoint_dtype, has_encoder
from quire.errors import LoadError, UnsupportedError
from quire.gguf import GGUFReader
from quire.hub.locate import locate
from tiny_checkpoints import config_of, shapes_of, tokenizer_json, weight_of, write_checkpoint, write_safetensors

# Transformers' names, after the prefix of text models in larger ones, and Mistral's.
NAMES = {
    r"model\.layers\.(\d+)\.self_attn\.(\w)_proj": r"layers.\1.attention.w\2",
    r"model\.layers\.(\d+)\.input_layernorm": r"layers.\1.attention_norm",
    r"model\.layers\.(\d+)\.post_attention_layernorm": r"layers.\1.ffn_norm",
    r"model\.layers\.(\d+)\.mlp\.gate_proj": r"layers.\1.feed_forward.w1",
    r"model\.layers\.(\d+)\.mlp\.down_proj": r"layers.\1.feed_forward.w2",
    r"model\.layers\.(\d+)\.mlp\.up_proj": r"layers.\1.feed_forward.w3",
    r"model\.layers\.(\d+)\.block_sparse_moe\.gate": r"layers.\1.feed_forward.gate",
    r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.(\d+)\.(w\d)": r"layers.\1.feed_forward.experts.\2.\3",
    r"model\.embed_tokens": "tok_embeddings",
    r"model\.norm": "norm",
    r"lm_head": "output",
    r"vision_tower\.transformer\.layers\.(\d+)\.attention\.(\w)_proj": (
        r"vision_encoder.transformer.layers.\1.attention.w\2"
    ),
    r"vision_tower\.transformer\.layers\.(\d+)\.feed_forward\.gate_proj": (
        r"vision_encoder.transformer.layers.\1.feed_forward.w1"
    ),
    r"vision_tower\.transformer\.layers\.(\d+)\.feed_forward\.down_proj": (
        r"vision_encoder.transformer.layers.\1.feed_forward.w2"
    ),
    r"vision_tower\.transformer\.layers\.(\d+)\.feed_forward\.up_proj": (
        r"vision_encoder.transformer.layers.\1.feed_forward.w3"
    ),
    r"vision_tower\.(.*)": r"vision_encoder.\1",
    r"multi_modal_projector\.linear_1": "vision_language_adapter.w_in",
    r"multi_modal_projector\.linear_2": "vision_language_adapter.w_out",
    r"multi_modal_projector\.norm": "pre_mm_projector_norm",
    r"multi_modal_projector\.patch_merger\.merging_layer": "patch_merger.merging_layer",
}
FIELDS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "max_position_embeddings": "max_position_embeddings",
}
YARN = {
    "original_max_position_embeddings": "original_max_position_embeddings",
    "factor": "factor",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}


def params_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = config_of(name)
    text = config.get("text_config", config)
    rope = text["rope_parameters"]
    params = {mine: text[theirs] for mine, theirs in FIELDS.items()} | {"rope_theta": rope["rope_theta"]}
    if text.get("sliding_window"):
        kinds = text.get("layer_types")
        one = text["sliding_window"]
        params["sliding_window"] = one if kinds is None else [one if kind[0] == "s" else None for kind in kinds]
    if rope["rope_type"] == "yarn":
        params["yarn"] = {mine: rope[theirs] for mine, theirs in YARN.items()} | {"apply_scale": False}
        n_ctx = rope["original_max_position_embeddings"]
        params["llama_4_scaling"] = {
            "beta": rope["llama_4_scaling_beta"],
            "original_max_position_embeddings": n_ctx,
        }
    if "num_local_experts" in config:
        params["moe"] = {
            "num_experts": config["num_local_experts"],
            "num_experts_per_tok": config["num_experts_per_tok"],
        }
    if "vision_config" in config:
        params["tied_embeddings"] = True
        vision = {name: value for name, value in config["vision_config"].items() if isinstance(value, int)}
        del vision["head_dim"]
        params["vision_encoder"] = {
            **vision, "rope_theta": 10000.0, "max_image_size": 84, "spatial_merge_size": config["spatial_merge_size"],
            "mm_projector_id": "patch_merge", "add_pre_mm_projector_layer_norm": True, "adapter_bias": False,
            "image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13,
        }  # fmt: skip
    return params


def own_name(name: str) -> str:
    name = name.replace("model.language_model.", "model.").removeprefix("language_model.")
    name = re.sub(r"^model\.(vision_tower|multi_modal)", r"\1", name)
    module, _, last = name.rpartition(".")
    for pattern, found in NAMES.items():
        if re.fullmatch(pattern, module):
            return f"{re.sub(pattern, found, module, count=1)}.{last}"
    raise AssertionError(name)


def write_mistral(folder: Path, name: str) -> dict[str, Any]:
    """Write a tiny checkpoint in Mistral's form: neighbours of q and k are rotated together."""
    folder.mkdir()
    params = params_of(name)
    (folder / "params.json").write_text(json.dumps(params))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    tensors = {}
    for tensor, shape in shapes_of(name).items():
        values = weight_of(name, tensor, tuple(shape))
        if found := re.search(r"\.(q|k)_proj\.weight", tensor):
            n_head = params["n_heads" if found[1] == "q" else "n_kv_heads"]
            if "vision_tower" in tensor:
                n_head = params["vision_encoder"]["num_attention_heads"]
            size = shape[0] // n_head
            order = [head * size + half * size // 2 + i for head in range(n_head) for i in range(size // 2)
                     for half in range(2)]  # fmt: skip
            values = values[order]
        tensors[own_name(tensor)] = values
    write_safetensors(folder / "consolidated.safetensors", tensors)
    return params


def assert_equal(mine: Path, theirs: Path) -> None:
    one, other = GGUFReader(mine), GGUFReader(theirs)
    for key in {*one.metadata, *other.metadata} - {"general.name"}:
        found, expected = one.metadata[key], other.metadata[key]
        assert np.array_equal(found, expected) if isinstance(found, np.ndarray) else found == expected, key
    assert [info.name for info in one.tensors] == [info.name for info in other.tensors]
    for info in one.tensors:
        assert np.array_equal(one.tensor(info.name).numpy(), other.tensor(info.name).numpy()), info.name


@pytest.mark.parametrize("name", ["mistral", "ministral", "mixtral", "mistral3", "mistral3-vl"])
def test_files_equal_those_of_transformers_form(name: str, tmp_path: Path) -> None:
    write_mistral(tmp_path / "mistral", name)
    write_checkpoint(tmp_path / "transformers", name)
    (tmp_path / "transformers" / "tokenizer_config.json").unlink()
    for form in ("mistral", "transformers"):
        convert(tmp_path / form, tmp_path / f"{form}.gguf", "f32")
    assert_equal(tmp_path / "mistral.gguf", tmp_path / "transformers.gguf")
    assert locate(str(tmp_path / "mistral"), None) == tmp_path / "mistral"
    assert checkpoint_dtype(tmp_path / "mistral") == "f32"
    assert has_encoder(tmp_path / "mistral") == (name == "mistral3-vl")


def test_encoders_of_images_equal_those_of_transformers_form(tmp_path: Path) -> None:
    words = tokenizer_json()
    words["added_tokens"] += [{"id": 260, "content": "[IMG_BREAK]", "special": True}]  # type: ignore[operator]
    write_mistral(tmp_path / "mistral", "mistral3-vl")
    write_checkpoint(tmp_path / "transformers", "mistral3-vl")
    config = config_of("mistral3-vl")
    config["vision_config"]["hidden_act"] = "silu"  # type: ignore[index]  # the only one of Mistral's own program
    (tmp_path / "transformers" / "config.json").write_text(json.dumps(config))
    settings = {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 84}}
    (tmp_path / "transformers" / "preprocessor_config.json").write_text(json.dumps(settings))
    for form in ("mistral", "transformers"):
        (tmp_path / form / "tokenizer.json").write_text(json.dumps(words))
        convert_projector(tmp_path / form, tmp_path / f"{form}.gguf", "f32")
    assert_equal(tmp_path / "mistral.gguf", tmp_path / "transformers.gguf")


def test_8_bit_floats_are_read_with_their_scales(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    params = write_mistral(folder, "mistral")
    convert(folder, tmp_path / "plain.gguf", "f32")
    (folder / "params.json").write_text(json.dumps({**params, "quantization": {"qformat_weight": "fp8_e4m3"}}))
    header = json.loads(
        (data := (folder / "consolidated.safetensors").read_bytes())[8 : 8 + int.from_bytes(data[:8], "little")]
    )
    base = 8 + int.from_bytes(data[:8], "little")
    pieces: dict[str, tuple[str, list[int], bytes]] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        pieces[name] = "F32", entry["shape"], data[base + begin : base + end]
        if name.endswith(("wq.weight", "w1.weight")):  # the number 1 of each matrix is 0x38
            pieces[name] = "F8_E4M3", entry["shape"], b"\x38" * ((end - begin) // 4)
            pieces[name.replace("weight", "qscale_weight")] = "F32", [], np.float32(0.25).tobytes()
            pieces[name.replace("weight", "qscale_act")] = "F32", [], np.float32(0.5).tobytes()
    made, at = {}, 0
    for name, (dtype, shape, values) in pieces.items():
        made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
    text = json.dumps(made).encode()
    parts = b"".join(values for _, _, values in pieces.values())
    (folder / "consolidated.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + parts)
    convert(folder, tmp_path / "scaled.gguf", "f32")
    plain, scaled = GGUFReader(tmp_path / "plain.gguf"), GGUFReader(tmp_path / "scaled.gguf")
    for info in plain.tensors:
        values = scaled.tensor(info.name).numpy()
        if info.name.endswith(("attn_q.weight", "ffn_gate.weight")):
            assert (values == 0.25).all()
        else:
            assert np.array_equal(values, plain.tensor(info.name).numpy())


def refused(tmp_path: Path, pattern: str, change: dict[str, object], name: str = "mistral3") -> None:
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    params = write_mistral(folder, name)
    changed = {key: value for key, value in {**params, **change}.items() if value is not None}
    (folder / "params.json").write_text(json.dumps(changed))
    with pytest.raises((UnsupportedError, LoadError), match=pattern):
        convert(folder, tmp_path / "x.gguf")


def test_fields_that_may_change_answers_are_named(tmp_path: Path) -> None:
    yarn = params_of("mistral3")["yarn"]
    refused(tmp_path, "model_type", {"model_type": "mamba"})
    refused(tmp_path, "'multimodal'", {"multimodal": {"whisper_model_args": {}}})
    refused(tmp_path, "'rope_theta' is missing", {"rope_theta": None})
    refused(tmp_path, "'use_biases'", {"use_biases": True})
    refused(tmp_path, "'kv_lora_rank'", {"kv_lora_rank": 32})
    refused(tmp_path, "'cold' of 'yarn'", {"yarn": {**yarn, "cold": 1}})
    refused(tmp_path, "original_max_position", {"llama_4_scaling": {"beta": 1, "original_max_position_embeddings": 17}})
    refused(tmp_path, "qformat_weight", {"quantization": {"qformat_weight": "nvfp4"}})
    refused(tmp_path, "sliding_window", {"sliding_window": [3, 4]})
    refused(tmp_path, "sliding_window", {"sliding_window": [[3], None]})
    refused(tmp_path, "mm_projector_id", {"vision_encoder": {"mm_projector_id": "perceiver"}})
    refused(tmp_path, "hidden_act", {"activation": "gelu"}, "mistral")


def test_unknown_tensors_are_named(tmp_path: Path) -> None:
    write_mistral(tmp_path / "folder", "mistral")
    write_safetensors(
        tmp_path / "folder" / "consolidated.safetensors", {"layers.0.extra.weight": np.ones((2, 2), "f4")}
    )
    with pytest.raises(UnsupportedError, match=r"'layers\.0\.extra\.weight'"):
        convert(tmp_path / "folder", tmp_path / "x.gguf")


def test_weights_in_transformers_form_take_precedence(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "both", "mistral")
    (tmp_path / "both" / "params.json").write_text("{}")
    (tmp_path / "both" / "consolidated.safetensors").write_bytes(b"")
    convert(tmp_path / "both", tmp_path / "x.gguf")


def test_a_folder_opens_with_its_own_tokenizer(tmp_path: Path) -> None:
    write_mistral(tmp_path / "folder", "mistral")
    (tmp_path / "folder" / "tokenizer.json").unlink()
    tekken = {
        "config": {
            "pattern": "", "default_vocab_size": 272, "default_num_special_tokens": 14, "version": "v3",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(text).decode()}
            for i, text in enumerate([bytes([byte]) for byte in range(256)] + [b"th", b"the"])
        ],
    }  # fmt: skip
    tekken["config"]["pattern"] = (  # type: ignore[call-overload,index]
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    (tmp_path / "folder" / "tekken.json").write_text(json.dumps(tekken))
    convert(tmp_path / "folder", tmp_path / "x.gguf")
    metadata = GGUFReader(tmp_path / "x.gguf").metadata
    assert metadata["tokenizer.ggml.pre"] == "tekken"
    assert metadata["tokenizer.ggml.bos_token_id"] == 1
    assert "[TOOL_RESULTS]" in str(metadata["tokenizer.chat_template"])
