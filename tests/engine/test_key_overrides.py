"""Keys and fields of a model's files that options replace: logits as transformers' with these values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM
from quire.checkpoints.conversion import convert
from quire.cli.main import main
from quire.compat.llama_cpp.options import engine_options
from quire.errors import QuireError, RequestError, UnsupportedError
from quire.gguf import GGUFReader, GGUFWriter
from tiny_checkpoints import REFERENCES, config_of, write_checkpoint

NAME = "llama-yarn"
ROPE: Any = config_of(NAME)["rope_parameters"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint whose config.json lacks the scaling, with its whole file in llama.cpp's form beside it."""
    found = tmp_path_factory.mktemp("keys") / NAME
    write_checkpoint(found, NAME)
    convert(found, found.with_name("whole.gguf"), "f32")
    plain = {**config_of(NAME), "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}
    (found / "config.json").write_text(json.dumps(plain))
    return found


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """Return the model without scaling and with another base."""
    reader, out = GGUFReader(folder.with_name("whole.gguf")), folder.with_name("plain.gguf")
    with GGUFWriter(out, "llama") as writer:
        keys = [key for key in reader.metadata if key.startswith("llama.rope.") and "dimension" not in key]
        writer.copy_metadata(reader.metadata, without=[*keys, "general.architecture"])
        writer.set("llama.rope.freq_base", 5.0, "f32")
        for info in reader.tensors:
            writer.add_tensor(info.name, info.dtype, info.shape)
        for info in reader.tensors:
            writer.write(info.name, reader.tensor(info.name))
    return out


def agrees(model: Path, **options: Any) -> bool:
    """Return whether a model with these options computes transformers' logits."""
    stored = np.load(REFERENCES / f"{NAME}.npz")
    with LLM(model, threads=1, kv_dtype="f32", **options) as llm:
        logits = llm.logits(stored["prompt"].tolist())
    return bool(np.abs(logits - stored["logits"]).max() < 1e-3 * np.abs(stored["logits"]).max())


def test_options_of_rope(file: Path) -> None:
    options = {
        "rope_scaling": "yarn",
        "rope_freq_base": ROPE["rope_theta"],
        "yarn_orig_ctx": ROPE["original_max_position_embeddings"],
        "yarn_beta_fast": 32.0,
        "yarn_beta_slow": -1,
    }
    assert agrees(file, rope_scale=ROPE["factor"], **options)
    assert agrees(file, rope_freq_scale=1 / ROPE["factor"], yarn_attn_factor=1 + 0.1 * np.log(4.0), **options)
    assert not agrees(file, rope_scale=ROPE["factor"], **{**options, "rope_scaling": "linear"})
    assert not agrees(file, rope_scale=ROPE["factor"], **{**options, "yarn_beta_fast": 2.0})


def test_arguments_of_llama_cpp_python(file: Path) -> None:
    given = {"rope_scaling_type": 2, "rope_freq_base": 1e4, "rope_freq_scale": 0.25, "yarn_orig_ctx": 64}
    found = engine_options({**given, "yarn_beta_fast": 32.0, "kv_overrides": {"llama.rope.freq_base": 5.0}})
    assert found.pop("override_kv") == {"llama.rope.freq_base": 5.0}
    for name in ("n_ctx", "device"):
        found.pop(name)
    assert agrees(file, **found)


def test_keys(file: Path) -> None:
    whole = GGUFReader(file.with_name("whole.gguf")).metadata
    keys = {key: whole[key] for key in whole if key.startswith("llama.rope.")}
    assert agrees(file, override_kv=keys)
    assert not agrees(file)
    kinds = {bool: "bool", int: "int", float: "float", str: "str"}
    assert agrees(file, override_kv=[f"{key}={kinds[type(value)]}:{value}" for key, value in keys.items()])
    with LLM(file, threads=1, override_kv=["tokenizer.ggml.add_bos_token=bool:true"]) as llm:
        assert llm.tokenizer.encode("a") == [256, *llm.tokenizer.encode("a", add_special=False)]


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("llama.rope.frequency", 1.0, "llama.rope.frequency"),
        ("qwen2.rope.freq_base", 1.0, "qwen2.rope.freq_base"),
        ("llama.ssm.inner_size", 4, "llama.ssm.inner_size"),
        ("llama.rope.freq_base", 7, "llama.rope.freq_base"),
        ("tokenizer.ggml.tokens", "x", "tokenizer.ggml.tokens"),
        ("llama.rope.freq_base", [1], "override_kv"),
    ],
)
def test_keys_that_nothing_reads_are_refused_by_name(file: Path, key: str, value: Any, named: str) -> None:
    with pytest.raises(QuireError, match=named):
        agrees(file, override_kv={key: value})


def test_fields_of_a_checkpoint(folder: Path, file: Path) -> None:
    assert agrees(folder, hf_overrides={"rope_parameters": ROPE})
    assert not agrees(folder)
    with pytest.raises(UnsupportedError, match="no_such_field"):
        agrees(folder, hf_overrides={"no_such_field": 3})
    with pytest.raises(UnsupportedError, match="override_kv"):
        agrees(file, hf_overrides={"rope_parameters": ROPE})
    with pytest.raises(RequestError, match="hf_overrides"):
        agrees(folder, hf_overrides="[1]")


def test_the_command_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "-m", str(file), "a", "--raw", "-n", "2", "--temp", "0"]
    scaled = ["--rope-scaling", "linear", "--rope-scale", "2", "--yarn-ext-factor", "-1"]
    assert main([*run, "--override-kv", "llama.rope.freq_base=float:9.5", *scaled]) == 0
    assert main([*run, "--override-kv", "llama.rope.freq_base=9.5"]) == 2
    assert "KEY=int|float|bool|str:VALUE" in capsys.readouterr().err
