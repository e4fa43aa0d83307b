"""``quire info`` on models that run and on models that do not: it names the missing key, tensor or operation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from predictor_models import predictor_tensors, trunk_tensors, write_predicting
from quire.checkpoints.conversion import convert
from quire.cli.main import main
from quire.models import architectures
from repackaged import PACKAGED, repackaged
from tiny_adapters import write_gguf_adapter, write_peft_adapter
from tiny_checkpoints import CONFIGS, class_of, write_checkpoint

Capture = pytest.CaptureFixture[str]


def info(capsys: Capture, *arguments: str, code: int = 0) -> str:
    assert main(["info", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def with_bytes(path: Path, before: bytes, after: bytes) -> Path:
    """Copy the package's file, replacing the first occurrence of some bytes by as many others."""
    assert len(before) == len(after)
    data = PACKAGED.read_bytes()
    assert before in data
    path.write_bytes(data.replace(before, after, 1))
    return path


CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "architecture": (lambda path: with_bytes(path, b"\x05\0\0\0\0\0\0\0qwen3", b"\x05\0\0\0\0\0\0\0qwemu"), "'qwemu'"),
    "key": (
        lambda path: repackaged(path, {"qwen3.attention.sliding_window": (12, "u32")}),
        "'qwen3.attention.sliding_window'",
    ),
    "value": (lambda path: repackaged(path, {"qwen3.attention.head_count": (7, "u32")}), "head_count"),
    "tensor": (lambda path: with_bytes(path, b"blk.3.ffn_up.weight", b"blk.3.ffn_oo.weight"), "'blk.3.ffn_up.weight'"),
    "tokenizer": (lambda path: repackaged(path, {"tokenizer.ggml.model": ("sputnik", "string")}), "'sputnik'"),
    "pre-tokenizer": (lambda path: repackaged(path, {"tokenizer.ggml.pre": ("sputnik", "string")}), "'sputnik'"),
    "sampling": (lambda path: repackaged(path, {"general.sampling.temp": (-1.0, "f32")}), "general.sampling"),
}


def test_multi_token_prediction_layers_are_reported(tmp_path: Path, capsys: Capture) -> None:
    def lines(tensors: dict[str, np.ndarray]) -> tuple[list[str], object]:
        write_predicting(tmp_path / "hf", "qwen35", tensors)
        shown = info(capsys, str(tmp_path / "hf")).splitlines()
        found = json.loads(info(capsys, str(tmp_path / "hf"), "--json"))
        assert "runs: yes" in shown
        return [line for line in shown if line.startswith("multi-token")], found["predicting_layers"]

    trunk = trunk_tensors("qwen35")
    assert lines(trunk) == ([], None)
    assert lines(trunk | predictor_tensors("qwen35")) == (
        ["multi-token prediction layers: 1 (--speculation mtp uses the first)"],
        {"n": 1, "is_used": True},
    )


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_is_named(tmp_path: Path, capsys: Capture, case: str) -> None:
    make, named = CASES[case]
    path = str(make(tmp_path / "x.gguf"))
    (line,) = [line for line in info(capsys, path).splitlines() if line.startswith("runs: ")]
    assert line.startswith("runs: no: [")
    assert named in line
    found = json.loads(info(capsys, path, "--json"))
    assert (found["runs"], len(found["runs_not_because"])) == (False, 1)
    assert named in found["runs_not_because"][0]
    assert len(found["tensors"]) > 80  # the file's contents are shown anyway
    # A model that info calls unsupported does not run.
    assert main(["run", "-m", path, "-n", "1", "x"]) != 0
    assert named in capsys.readouterr().err


def test_every_missing_thing_is_reported(tmp_path: Path, capsys: Capture) -> None:
    changes = {"tokenizer.ggml.model": ("sputnik", "string"), "qwen3.ssm.conv_kernel": (1, "u32")}
    reasons = json.loads(info(capsys, str(repackaged(tmp_path / "x.gguf", changes)), "--json"))["runs_not_because"]
    assert [name in reason for name, reason in zip(("qwen3.ssm.conv_kernel", "sputnik"), reasons, strict=True)] == [
        True,
        True,
    ]


def test_an_unknown_tensor_type_is_named(tmp_path: Path, capsys: Capture) -> None:
    name = b"blk.3.ffn_up.weight"
    data = PACKAGED.read_bytes()
    begin = data.index(name) + len(name)
    at = begin + 4 + 8 * int.from_bytes(data[begin : begin + 4], "little")
    (tmp_path / "x.gguf").write_bytes(data[:at] + (77).to_bytes(4, "little") + data[at + 4 :])
    error = info(capsys, str(tmp_path / "x.gguf"), code=3)
    assert "'blk.3.ffn_up.weight'" in error
    assert "77" in error


def test_an_invalid_template_only_affects_chats(tmp_path: Path, capsys: Capture) -> None:
    path = str(repackaged(tmp_path / "x.gguf", {"tokenizer.chat_template": ("{% for %}", "string")}))
    text = info(capsys, path).splitlines()
    assert any(line.startswith("chat: no: [chat template]") for line in text)
    assert "runs: yes" in text


def test_the_package_runs(capsys: Capture) -> None:
    assert "runs: yes" in info(capsys, str(PACKAGED)).splitlines()
    found = json.loads(info(capsys, str(PACKAGED), "--json"))
    assert (found["runs"], found["runs_not_because"], found["memory_unknown_because"]) == (True, [], None)


def test_a_folder_is_shown_as_its_converted_file(tmp_path: Path, capsys: Capture) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    found = json.loads(info(capsys, str(tmp_path / "llama"), "--json"))
    assert (found["runs"], found["path"]) == (True, str(tmp_path / "llama"))
    assert found["metadata"]["general.architecture"] == "llama"
    assert "blk.1.ffn_down.weight" in {tensor["name"] for tensor in found["tensors"]}
    text = info(capsys, str(tmp_path / "llama"))
    assert "runs: yes" in text.splitlines()
    assert f"{tmp_path / 'llama'}: as GGUF" in text


def test_a_folder_that_cannot_be_converted(tmp_path: Path, capsys: Capture) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    config = tmp_path / "llama" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "per_layer_config": {"0": {"head_dim": 8}}}))
    assert info(capsys, str(tmp_path / "llama")).startswith("runs: no: [convert] ")
    found = json.loads(info(capsys, str(tmp_path / "llama"), "--json"))
    assert not found["runs"]
    assert "'per_layer_config'" in found["runs_not_because"][0]


def test_unknown_config_fields_are_shown(tmp_path: Path, capsys: Capture) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    config = tmp_path / "llama" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "mystery_field": 7}))
    assert "ignored fields of config.json: mystery_field" in info(capsys, str(tmp_path / "llama"))


def test_all_architectures_are_listed(capsys: Capture) -> None:
    listed = json.loads(info(capsys, "--architectures", "--json"))["architectures"]
    assert [each["architecture"] for each in listed] == architectures()
    assert all(len(each["description"]) > 20 for each in listed)
    # Includes every class that the reference tests use.
    assert {class_of(name) for name in CONFIGS} <= {name for each in listed for name in each["classes"]}
    assert all(("safetensors" in each["formats"]) == bool(each["classes"]) for each in listed)
    table = info(capsys, "--architectures")
    assert f"{len(listed)} architectures." in table
    assert "Qwen3ForCausalLM" in table


def test_architectures_takes_no_model(capsys: Capture) -> None:
    assert "--architectures" in info(capsys, "--architectures", str(PACKAGED), code=2)


def test_adapters_alone_and_with_a_model(tmp_path: Path, capsys: Capture) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    a, b = np.ones((3, 64), np.float32), np.ones((64, 3), np.float32)
    matrices = {"blk.0.attn_q.weight.lora_a": a, "blk.0.attn_q.weight.lora_b": b}
    file = write_gguf_adapter(tmp_path / "style.gguf", matrices, {"general.base_model.0.name": "A Model"})
    other = write_gguf_adapter(tmp_path / "other.gguf", matrices, {"general.architecture": "qwen2"})
    halves = {"model.layers.0.self_attn.q_proj.lora_A": a, "model.layers.0.self_attn.q_proj.lora_B": b}
    config = {"r": 3, "target_modules": ["q_proj"]}
    folder = write_peft_adapter(tmp_path / "tone", halves, config)
    lengths = {"model.layers.0.self_attn.q_proj.lora_magnitude_vector": np.ones(64, np.float32)}
    dora = write_peft_adapter(tmp_path / "dora", halves | lengths, {**config, "use_dora": True})
    same = {"ranks": [3], "n_tensors": 2, "n_parameters": 384}
    facts = {
        file: same | {"format": "GGUF 3", "architecture": "llama", "base_model": "A Model", "alpha": 6.0},
        folder: same | {"format": "PEFT", "architecture": None, "base_model": "somebody/a-model", "alpha": 16.0},
    }
    for path, expected in facts.items():
        found = json.loads(info(capsys, str(path), "--json"))
        assert {name: found[name] for name in expected} == expected
        assert found["size_bytes"] >= 4 * 384
        shown = info(capsys, str(path))
        assert "runs: with its model" in shown
        assert str(expected["base_model"]) in shown
    assert "PEFT, DoRA" in info(capsys, str(dora))
    for model in ("x.gguf", "hf"):
        path = str(tmp_path / model)
        found = json.loads(info(capsys, path, "--lora", f"{file}:0.5,{folder}", "--json"))
        assert found["runs"]
        assert [(each["scale"], each["fits"], each["ranks"]) for each in found["adapters"]] == [
            (0.5, True, [3]), (1.0, True, [3]),
        ]  # fmt: skip
        lines = info(capsys, path, "--lora", f"{folder},{other},{dora}").splitlines()
        refusals = [line for line in lines if line.startswith("runs: ")]
        assert len(refusals) == 1
        assert "qwen2" in refusals[0]
    assert "MODEL is an adapter" in info(capsys, str(file), "--lora", str(file), code=2)
