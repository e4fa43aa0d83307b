"""DeepSeek V4: compressed rows in the cache and beside devices, and the names of published checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from counting_device import counting_device
from quire import LLM
from quire.checkpoints.conversion import convert
from quire.errors import LoadError, UnsupportedError
from quire.gguf import GGUFReader
from quire.models import load_model
from test_latent_models import tensors_of, written
from tiny_checkpoints import config_of, shapes_of, weight_of, write_checkpoint, write_safetensors

PUBLISHED = {
    "model.embed_tokens.": "embed.",
    "model.hc_head.hc_": "hc_head_",
    ".attn.norm.": ".attn.kv_norm.",
    "model.": "",
}


def published_name(name: str) -> str:
    for old, new in PUBLISHED.items():
        name = name.replace(old, new)
    return name


def test_published_names_and_fields_mean_the_same(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "deepseek4")
    write_checkpoint(tmp_path / "old", "deepseek4")
    config = config_of("deepseek4")
    scaling = dict(config.pop("rope_parameters"))  # type: ignore[call-overload]
    for name in ("layer_types", "compress_rates", "mlp_layer_types"):
        del config[name]
    old = {"compress_ratios": [0, 4, 128, 4, 0], "compress_rate_hca": 8, "num_hash_layers": 1}
    scaling["type"] = scaling.pop("rope_type")
    (tmp_path / "old" / "config.json").write_text(json.dumps({**config, **old, "rope_scaling": scaling}))
    shapes = shapes_of("deepseek4").items()
    tensors = {published_name(name): weight_of("deepseek4", name, tuple(shape)) for name, shape in shapes}
    tensors["mtp.0.e_proj.weight"] = np.ones((4, 4), np.float32)
    write_safetensors(tmp_path / "old" / "model.safetensors", tensors)
    for name in ("hf", "old"):
        convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32")
    one, other = (GGUFReader(tmp_path / f"{name}.gguf") for name in ("hf", "old"))
    assert [info.name for info in one.tensors] == [info.name for info in other.tensors]
    for info in one.tensors:
        np.testing.assert_array_equal(one.tensor(info.name).numpy(), other.tensor(info.name).numpy())
    keys = [key for key in one.metadata if key.startswith("deepseek4.") or key.startswith("rope")]
    assert len(keys) > 30
    assert all(np.array_equal(one.metadata[key], other.metadata[key]) for key in keys)


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({"attention.compress_ratios": np.array([0, 4, 12, 4], np.int32)}, UnsupportedError, "compress_ratios 12"),
        ({"attention.value_length": 12}, LoadError, "value_length 12"),
        ({"attention.output_group_count": 4}, LoadError, "output_group_count 4"),
        ({"swiglu_clamp_exp": np.full(4, -1, np.float32)}, LoadError, "swiglu_clamp_exp"),
        ({"attention.compress_rope_freq_base": 0.0}, LoadError, "base of the frequencies 0.0"),
    ],
)
def test_impossible_keys_are_refused(
    tmp_path: Path, keys: dict[str, object], error: type[Exception], words: str
) -> None:
    write_checkpoint(tmp_path / "hf", "deepseek4")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    source = GGUFReader(tmp_path / "x.gguf")
    with pytest.raises(error, match=words):
        load_model(GGUFReader(written(tmp_path / "y.gguf", source, keys, tensors_of(source))))


def test_experts_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    shapes = shapes_of("deepseek4")
    tensors = {name: weight_of("deepseek4", name, tuple(shape)) for name, shape in shapes.items()}
    tensors["model.layers.0.ffn.gate.tid2eid"][5, 1] = 9
    write_checkpoint(tmp_path / "hf", "deepseek4")
    write_safetensors(tmp_path / "hf" / "model.safetensors", tensors)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    with pytest.raises(LoadError, match="beyond the 9 there are"):
        load_model(GGUFReader(tmp_path / "x.gguf"))


def test_glm_5_3_has_two_names_for_the_sizes_of_the_delta_rule(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "glm5-next")
    convert(tmp_path / "hf", tmp_path / "a.gguf", "f32")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    old = config["text_config"].pop("linear_attn_config")
    names = {
        "num_heads": "linear_num_heads", "head_dim": "linear_head_dim", "gate_lower_bound": "linear_lower_bound",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }  # fmt: skip
    config["text_config"] |= {names[name]: value for name, value in old.items()}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "hf", tmp_path / "b.gguf", "f32")
    one, other = (GGUFReader(tmp_path / f"{name}.gguf").metadata for name in "ab")
    assert one["glm5-next.kda.head_dim"] == 14
    assert all(np.array_equal(one[key], other[key]) for key in one if key.startswith("glm5-next."))


@pytest.mark.parametrize("name", ["deepseek4", "glm5-next"])
def test_compressed_rows_are_found_in_the_cache(tmp_path: Path, name: str) -> None:
    """Compressed rows, and the tokens of windows that are not whole, of prompts that continue others."""
    write_checkpoint(tmp_path / "hf", name)
    first = np.random.default_rng(6).integers(0, 256, 100).tolist()
    longer = [[*first[:n], *range(n % 7 + 2)] for n in (100, 64, 97, 70)]
    with LLM(tmp_path / "hf", max_step_tokens=24) as llm:
        llm.generate([first], max_tokens=2, temperature=0)
        continued = llm.generate(longer, max_tokens=8, temperature=0)
    expected = []
    for prompt in longer:
        with LLM(tmp_path / "hf") as llm:
            expected.append(llm.generate([prompt], max_tokens=8, temperature=0)[0].token_ids)
    assert [result.token_ids for result in continued] == expected
    assert continued[0].n_cached_tokens >= 96
    if name == "deepseek4":  # no recurrent states, of which there are only some snapshots
        assert all(result.n_cached_tokens >= 64 for result in continued)


@pytest.mark.parametrize("name", ["deepseek4", "glm5-next"])
def test_compressed_attention_runs_on_the_cpu_beside_a_device(tmp_path: Path, name: str) -> None:
    counting_device()
    write_checkpoint(tmp_path / "hf", name)
    prompt = np.random.default_rng(5).integers(0, 256, 45).tolist()
    found = []
    for where in ({"device": "Counting0", "fit_target": 0}, {"device": "cpu"}):
        with LLM(
            tmp_path / "hf", kv_dtype="f32", threads=1, n_ctx=64, max_step_tokens=48, max_sequences=1, **where
        ) as llm:  # type: ignore[arg-type]
            found.append(llm.generate([prompt], max_tokens=4, temperature=0)[0].token_ids)
    assert found[0] == found[1]
