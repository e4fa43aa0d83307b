"""Checkpoint classes that are other names of a model: their files are those of the class that transformers knows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from quire.gguf import GGUFReader
from quire.safetensors import SafetensorsFile
from tiny_checkpoints import config_of, write_checkpoint, write_safetensors

pytestmark = pytest.mark.python_only

Config = dict[str, Any]


def renamed(**names: str) -> Callable[[Config], Config]:
    """Return a function that renames fields."""
    return lambda config: {names.get(name, name): value for name, value in config.items()}


REFINED_WEB = renamed(num_hidden_layers="n_layer", num_attention_heads="n_head", num_kv_heads="n_head_kv")


def refined_web(config: Config) -> Config:
    """Falcon 40B's first configuration, in which heads tell the architecture, or 7B's."""
    is_new = config.get("new_decoder_architecture")
    left = ("new_decoder_architecture", *(("multi_query",) if is_new else ("num_kv_heads",)))
    kept = {name: value for name, value in config.items() if name not in left}
    return {**REFINED_WEB(kept), "model_type": "RefinedWeb", "apply_residual_connection_post_layernorm": False}


def teleflm(config: Config) -> Config:
    """Granite's multipliers of embeddings and logits under the names of TeleFLM, which has no others."""
    kept = {name: value for name, value in config.items() if not name.endswith(("_multiplier", "_scaling"))}
    return {
        **kept, "use_mup": True, "input_mult": config["embedding_multiplier"],
        "mup_scale_factor": 2.5 * config["logits_scaling"], "output_mult": 2.5,
    }  # fmt: skip


def vision(config: Config) -> Config:
    text = {**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return {
        "text_config": text, "vision_config": {"model_type": "siglip_vision_model"}, "model_type": "hyperclovax_vlm",
        "anyres": True, "unpad": True, "max_num_grids": 9, "num_queries_vis_abstractor_image": 81, "img_start_id": 259,
        "mm_projector_type": "cabstractor", "use_nth_layer": -2, "proj_prenorm": False, "decoder_max_length": 16000,
        "possible_resolutions": [[384, 384]], "use_1x1_grid": True, "freeze_encoder": False, "ignore_index": -100,
    }  # fmt: skip


# The class, the tiny checkpoint of the class that transformers knows, the configuration, the prefix of tensors, tensors
# of other parts, and keys that the file lacks, with their defaults.
NAMES: list[tuple[str, str, Callable[[Config], Config], str, list[str], Mapping[str, float]]] = [
    ("GritLM", "mistral", dict, "", [], {}),
    ("InternLM2VEForCausalLM", "internlm2", dict, "", ["model.layers.1.feed_forward_ve.w1.weight"], {}),
    ("RWForCausalLM", "falcon", refined_web, "", [], {}),
    ("RWForCausalLM", "falcon-new", refined_web, "", [], {}),
    (
        "StableLMEpochForCausalLM", "stablelm", renamed(layer_norm_eps="norm_eps", partial_rotary_factor="rope_pct"),
        "", [], {},
    ),
    ("TeleFLMForCausalLM", "granite", teleflm, "", [], {"attention.scale": 16**-0.5, "residual_scale": 1.0}),
    (
        "HCXVisionForCausalLM", "llama", vision, "language_model.",
        ["vision_model.head.weight", "mm_projector.net.0.conv.weight", "image_newline"], {},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "change", "prefix", "others", "lacking"), NAMES)
def test_a_checkpoint_under_another_name(
    tmp_path: Path,
    kind: str,
    name: str,
    change: Callable[[Config], Config],
    prefix: str,
    others: list[str],
    lacking: Mapping[str, float],
) -> None:
    write_checkpoint(tmp_path / "own", name)
    own = config_of(name)
    if lacking:
        own |= {"attention_multiplier": lacking["attention.scale"], "residual_multiplier": lacking["residual_scale"]}
    (tmp_path / "own" / "config.json").write_text(json.dumps(own))
    convert(tmp_path / "own", tmp_path / "own.gguf", "f32")
    write_checkpoint(tmp_path / "other", name)
    (tmp_path / "other" / "config.json").write_text(json.dumps({**change(own), "architectures": [kind]}))
    own_tensors = SafetensorsFile(tmp_path / "own" / "model.safetensors")
    tensors = {prefix + tensor: own_tensors.array(tensor) for tensor in own_tensors}
    tensors |= {other: np.ones((2, 2), np.float32) for other in others}
    write_safetensors(tmp_path / "other" / "model.safetensors", tensors)
    convert(tmp_path / "other", tmp_path / "other.gguf", "f32")
    expected, found = GGUFReader(tmp_path / "own.gguf"), GGUFReader(tmp_path / "other.gguf")
    arch = expected.metadata.text("general.architecture")
    assert found.metadata.text("general.architecture") == arch
    theirs, ours = (
        {key: value for key, value in reader.metadata.items() if key.startswith(f"{arch}.")}
        for reader in (expected, found)
    )
    assert ours == {key: value for key, value in theirs.items() if key.removeprefix(f"{arch}.") not in lacking}
    assert [info.name for info in found.tensors] == [info.name for info in expected.tensors]
    for info in expected.tensors:
        assert np.array_equal(found.tensor(info.name).numpy(), expected.tensor(info.name).numpy())


def test_phi_4_multimodal_reads_the_matrices_beside_adapters(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "plain", "phi4_multimodal")
    write_checkpoint(tmp_path / "adapted", "phi4_multimodal")
    path, tensors = tmp_path / "adapted" / "model.safetensors", {}
    stored = SafetensorsFile(path)
    for name in stored:
        base = re.sub(r"(layers\.\d+\.\w+\.(?:qkv|o|gate_up|down)_proj)\.weight", r"\1.base_layer.weight", name)
        tensors[base] = stored.array(name).copy()
        if base != name and name.startswith("model.layers"):
            for part in ("A", "B"):
                tensors[base.replace("base_layer", f"lora_{part}.vision")] = np.ones((2, 2), np.float32)
    write_safetensors(path, tensors)
    config = {**config_of("phi4_multimodal"), "architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm"}
    others = {"vision_lora": {"r": 256}, "speech_lora": {"r": 320}, "embd_layer": {"use_hd_transform": True}}
    (tmp_path / "adapted" / "config.json").write_text(json.dumps({**config, **others}))
    for name in ("plain", "adapted"):
        convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32")
    mine, theirs = GGUFReader(tmp_path / "adapted.gguf"), GGUFReader(tmp_path / "plain.gguf")
    assert [info.name for info in mine.tensors] == [info.name for info in theirs.tensors]
    for info in mine.tensors:
        assert np.array_equal(mine.tensor(info.name).numpy(), theirs.tensor(info.name).numpy())
