"""Conversion: standard names and keys, shards, dtypes, atomic output, strict reading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from quire._native.quant import dequantize
from quire.checkpoints.conversion import CheckpointReader, convert
from quire.errors import LoadError, QuireError, UnsupportedError
from quire.gguf import GGUFReader
from tiny_checkpoints import (
    CONFIGS,
    N_VOCAB,
    byte_characters,
    config_of,
    shapes_of,
    tokenizer_json,
    weight_of,
    write_checkpoint,
)


def test_standard_names_keys_and_values(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "qwen2")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    reader = GGUFReader(tmp_path / "x.gguf")
    m = reader.metadata
    expected = {
        "general.architecture": "qwen2", "general.file_type": 0, "qwen2.block_count": 2, "qwen2.context_length": 256,
        "qwen2.embedding_length": 64, "qwen2.feed_forward_length": 96, "qwen2.attention.head_count": 4,
        "qwen2.attention.head_count_kv": 2, "qwen2.rope.freq_base": 1e6, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257, "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip
    assert {key: m[key] for key in expected} == expected
    assert m.number("qwen2.attention.layer_norm_rms_epsilon") == np.float32(1e-5)
    tokens = [token.decode() for token in m.strings("tokenizer.ggml.tokens")]
    assert tokens[:258] == [*byte_characters(), "<s>", "</s>"]
    assert tokens[259] == "[PAD259]"
    assert m.array("tokenizer.ggml.token_type").tolist() == [1] * 256 + [3] * 3 + [5] * (N_VOCAB - 259)
    layer = ["attn_norm.weight", "ffn_norm.weight", "attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias", "attn_v.weight",
             "attn_v.bias", "attn_output.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"]  # fmt: skip
    names = {"token_embd.weight", "output_norm.weight", *(f"blk.{i}.{name}" for i in range(2) for name in layer)}
    assert {info.name for info in reader.tensors} == names
    theirs = weight_of("qwen2", "model.layers.1.mlp.up_proj.weight", (96, 64))
    assert np.array_equal(reader.tensor("blk.1.ffn_up.weight").numpy(), theirs)


def test_llama_heads_are_interleaved(tmp_path: Path) -> None:
    """Row i of a head's first half becomes row 2i, row i of its second half 2i + 1."""
    write_checkpoint(tmp_path / "hf", "llama")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    theirs = weight_of("llama", "model.layers.0.self_attn.k_proj.weight", (32, 64))
    ours = GGUFReader(tmp_path / "x.gguf").tensor("blk.0.attn_k.weight").numpy()
    for head in range(2):
        for i in range(8):
            assert np.array_equal(ours[head * 16 + 2 * i], theirs[head * 16 + i])
            assert np.array_equal(ours[head * 16 + 2 * i + 1], theirs[head * 16 + 8 + i])


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("bert", "tokenizer.ggml.token_type_count", 2),  # llama.cpp opens no encoder without it
        ("gemma4-moe", "gemma4.final_logit_softcapping", 0.0),  # llama.cpp's default is 30
    ],
)
def test_keys_that_override_defaults_of_other_readers(tmp_path: Path, name: str, key: str, value: object) -> None:
    write_checkpoint(tmp_path / "hf", name)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    assert GGUFReader(tmp_path / "x.gguf").metadata[key] == value


def test_experts_are_stacked(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "qwen3moe")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    stacked = GGUFReader(tmp_path / "x.gguf").tensor("blk.1.ffn_down_exps.weight").numpy()
    assert stacked.shape == (8, 64, 32)
    for i in range(8):
        assert np.array_equal(
            stacked[i], weight_of("qwen3moe", f"model.layers.1.mlp.experts.{i}.down_proj.weight", (64, 32))
        )


def test_gemma_norms_include_the_added_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "gemma3")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    ours = GGUFReader(tmp_path / "x.gguf").tensor("blk.3.post_ffw_norm.weight").numpy()
    np.testing.assert_array_equal(
        ours, weight_of("gemma3", "model.layers.3.post_feedforward_layernorm.weight", (64,)) + np.float32(1)
    )


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 0.0), ("f16", 5e-4), ("bf16", 4e-3), ("q8_0", 4e-3)])
def test_dtypes(tmp_path: Path, dtype: str, bound: float) -> None:
    """Matrices have the requested dtype, vectors are f32; the error is at most half a step of the type."""
    write_checkpoint(tmp_path / "hf", "qwen3")
    convert(tmp_path / "hf", tmp_path / "x.gguf", dtype)
    reader = GGUFReader(tmp_path / "x.gguf")
    for info in reader.tensors:
        assert str(info.dtype) == (dtype if len(info.shape) > 1 else "f32")
    theirs = weight_of("qwen3", "model.layers.0.mlp.down_proj.weight", (64, 96))
    error = np.abs(dequantize(reader.tensor("blk.0.ffn_down.weight")) - theirs).max()
    assert error <= bound * np.abs(theirs).max()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_converts_to_a_smaller_type(tmp_path: Path, name: str) -> None:
    """Weights that a model needs as f32 stay f32, even matrices of biases: convert opens the model before writing it."""
    write_checkpoint(tmp_path / "hf", name)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "bf16")
    kinds = {info.name: str(info.dtype) for info in GGUFReader(tmp_path / "x.gguf").tensors}
    assert {kind for tensor, kind in kinds.items() if tensor.endswith(".bias")} <= {"f32"}
    assert kinds["token_embd.weight"] == "bf16"


def test_rows_that_do_not_divide_become_f16(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "mistral")  # 4 heads of 24: o_proj has rows of 96; q8_0 fits
    shapes = {name: ([64, 80] if "down_proj" in name else [80, 64] if "up_proj" in name or "gate_proj" in name else shape)
              for name, shape in shapes_of("mistral").items()}  # fmt: skip
    write_checkpoint(tmp_path / "hf", "mistral", shapes)
    config = config_of("mistral") | {"intermediate_size": 80}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "hf", tmp_path / "x.gguf", "q8_0")
    reader = GGUFReader(tmp_path / "x.gguf")
    assert str(reader.tensor_info("blk.0.ffn_down.weight").dtype) == "f16"
    assert str(reader.tensor_info("blk.0.ffn_up.weight").dtype) == "q8_0"


def test_shards_equal_one_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "one", "qwen3")
    write_checkpoint(tmp_path / "many", "qwen3", n_shards=3)
    convert(tmp_path / "one", tmp_path / "one.gguf", "bf16")
    convert(tmp_path / "many", tmp_path / "many.gguf", "bf16")
    one, many = GGUFReader(tmp_path / "one.gguf"), GGUFReader(tmp_path / "many.gguf")
    for info in one.tensors:
        assert np.array_equal(one.tensor(info.name).numpy(), many.tensor(info.name).numpy())


def test_progress_is_reported(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "qwen3")
    told: list[tuple[int, int, str]] = []
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f16", lambda done, total, name: told.append((done, total, name)))
    assert told[0] == (0, len(told) - 1, "token_embd.weight")
    assert told[-1] == (len(told) - 1, len(told) - 1, "")


def edit(name: str, **changes: object) -> Callable[[Path], None]:
    """Change fields of a JSON file; None removes a field."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        for field, value in changes.items():
            content[field] = value
            if value is None:
                del content[field]
        (folder / name).write_text(json.dumps(content))

    return change


SPLIT = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"},
                                               {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}  # fmt: skip
BAD: dict[str, tuple[Callable[[Path], object], type[QuireError], str]] = {
    "no_config": (lambda f: (f / "config.json").unlink(), LoadError, "config.json"),
    "config_no_json": (lambda f: (f / "config.json").write_text("{"), LoadError, "config.json"),
    "config_deep": (lambda f: (f / "config.json").write_text("[" * 100000), LoadError, "config.json"),
    "config_list": (lambda f: (f / "config.json").write_text("[]"), LoadError, "config.json"),
    "architecture": (edit("config.json", architectures=["MysteryForCausalLM"]), UnsupportedError, "'MysteryForCausalLM'"),
    "no_architecture": (edit("config.json", architectures=[], model_type="mystery"), LoadError, "'architectures'"),
    "no_hidden_size": (edit("config.json", hidden_size=None), LoadError, "'hidden_size'"),
    "hidden_size_text": (edit("config.json", hidden_size="64"), LoadError, "'hidden_size'"),
    "layers_true": (edit("config.json", num_hidden_layers=True), LoadError, "'num_hidden_layers'"),
    "no_heads": (edit("config.json", num_attention_heads=0), LoadError, "'num_attention_heads'"),
    "heads_negative": (edit("config.json", num_attention_heads=-4), LoadError, "'num_attention_heads'"),
    "too_many_layers": (edit("config.json", num_hidden_layers=3), LoadError, "model.layers.2"),
    "too_few_layers": (edit("config.json", num_hidden_layers=1), UnsupportedError, "model.layers.1"),
    "window": (edit("config.json", use_sliding_window=True), UnsupportedError, "'use_sliding_window'"),
    "activation": (edit("config.json", hidden_act="swish7"), UnsupportedError, "'hidden_act'"),
    "rope": (edit("config.json", rope_parameters={"rope_type": "longrope", "rope_theta": 1e4}), UnsupportedError, "'longrope'"),
    "no_weights": (lambda f: (f / "model.safetensors").unlink(), LoadError, r"model\.safetensors"),
    "weights_cut": (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-4]), LoadError, "model.safetensors.* the file has"),
    "no_tokenizer": (lambda f: (f / "tokenizer.json").unlink(), LoadError, "tokenizer.json"),
    "word_level": (edit("tokenizer.json", model={"type": "WordLevel", "vocab": {}}), UnsupportedError, "'WordLevel'"),
    "byte_fallback": (edit("tokenizer.json", model={**tokenizer_json()["model"], "byte_fallback": True}), UnsupportedError, "all 256 byte tokens"),  # type: ignore[dict-item]
    "unknown_split": (edit("tokenizer.json", pre_tokenizer=SPLIT), UnsupportedError, "expression"),
    "token_id": (edit("tokenizer.json", added_tokens=[{"id": 999, "content": "<s>"}, {"id": 257, "content": "</s>"}]), LoadError, "vocab_size"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_checkpoints_are_errors_and_leave_no_file(tmp_path: Path, name: str) -> None:
    change, error, message = BAD[name]
    write_checkpoint(tmp_path / "hf", "qwen3")
    change(tmp_path / "hf")
    with pytest.raises(error, match=message):
        convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("qwen3", "num_hidden_layers", 2**31 - 1, "'num_hidden_layers'.* 2147483647: expected 0 to 1024"),
        ("qwen3", "vocab_size", 2**31 - 1, "2147483647.*'model.embed_tokens.weight' has 272 rows"),
        ("qwen3", "vocab_size", 273, "273.*'model.embed_tokens.weight' has 272 rows"),
        ("cwm", "head_dim", 2**31 - 1, "'head_dim'.* 2147483647"),
        ("llama-llama3", "hidden_size", 2**31 - 1, "536870911"),
        ("falcon_h1", "mamba_d_state", 2**31 - 1, "in_proj has"),
        ("hrm_text", "H_cycles", 1000, "layers: expected at most 1024"),
    ],
)
def test_huge_counts_are_errors_before_anything_is_made_for_each(
    tmp_path: Path, name: str, field: str, value: int, message: str
) -> None:
    write_checkpoint(tmp_path / "hf", name)
    edit("config.json", **{field: value})(tmp_path / "hf")
    with pytest.raises(LoadError, match=message):
        convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")


def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"folder not found: .*absent$"):
        convert(tmp_path / "absent", tmp_path / "x.gguf")
    with pytest.raises(LoadError, match=r"file not found: .*config\.json$"):
        convert(tmp_path, tmp_path / "x.gguf")


def test_an_unknown_dtype_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'q4_k'"):
        convert(tmp_path, tmp_path / "x.gguf", "q4_k")


def test_llama3_factors_follow_the_published_formula(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "llama-llama3")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    found = GGUFReader(tmp_path / "x.gguf").tensor("rope_freqs.weight").numpy()
    expected = []
    for i in range(8):  # one frequency at a time, by the definition's cases
        frequency = 5e5 ** (-2 * i / 16)
        wave = 2 * np.pi / frequency
        smooth = (64 / wave - 1.0) / (4.0 - 1.0)
        scaled = (
            frequency
            if wave < 64 / 4
            else frequency / 8
            if wave > 64 / 1
            else (1 - smooth) * frequency / 8 + smooth * frequency
        )
        expected.append(frequency / scaled)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"do_sample": False, "temperature": 0.6}, {"temp": 0.0}),
        ({"do_sample": True, "temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": None}, {"temp": 0.5, "top_k": 20, "top_p": 0.75}),
        ({"repetition_penalty": 1.25, "min_p": 0.125, "eos_token_id": [1, 2]}, {"penalty_repeat": 1.25, "min_p": 0.125}),
    ],
)  # fmt: skip
def test_advice_on_sampling(tmp_path: Path, advice: dict[str, object] | None, expected: dict[str, float]) -> None:
    write_checkpoint(tmp_path / "hf", "qwen3")
    if advice is not None:
        (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(advice))
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    m = GGUFReader(tmp_path / "x.gguf").metadata
    prefix = "general.sampling."
    assert {key.removeprefix(prefix): m[key] for key in m if key.startswith(prefix)} == expected
    # gguf-py's names.
    assert all(prefix + key in vars(gguf.Keys.General).values() for key in expected)


def test_advice_of_another_type_is_an_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "qwen3")
    (tmp_path / "hf" / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(LoadError, match="'temperature'"):
        convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    assert not (tmp_path / "x.gguf").exists()


def test_a_folder_opens_like_its_converted_file(tmp_path: Path) -> None:
    """Keys and every tensor's storage are equal, without writing the data: experts stacked, heads interleaved."""
    for name, dtype in (("qwen3moe", "q8_0"), ("llama", "bf16"), ("gemma3", "f32")):
        write_checkpoint(tmp_path / name, name, n_shards=2)
        convert(tmp_path / name, tmp_path / f"{name}.gguf", dtype)
        scratch = tmp_path / f"{name}-scratch"
        scratch.mkdir()
        expected = GGUFReader(tmp_path / f"{name}.gguf")
        with CheckpointReader(tmp_path / name, scratch, dtype) as found:
            (left,) = scratch.iterdir()
            assert left.stat().st_blocks * 512 < 64 << 10  # keys and names only
            assert list(found.metadata) == list(expected.metadata)
            for info in expected.tensors:
                assert found.tensor_info(info.name).shape == info.shape
                np.testing.assert_array_equal(found.tensor(info.name).numpy(), expected.tensor(info.name).numpy())
        assert not list(scratch.iterdir())
