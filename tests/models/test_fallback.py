"""Checkpoints of classes that Quire has no file for, read as transformers' code computes them.  Needs torch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from quire import LLM
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion import fallback as module
from quire.errors import LoadError, UnsupportedError
from tiny_checkpoints import class_of, config_of, tokenizer_json

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from quire.checkpoints.structure.finding import find  # noqa: E402  (needs torch)

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

UNKNOWN = UnsupportedError("unknown")
SIZES: dict[str, Any] = {
    "vocab_size": 272, "d_model": 64, "decoder_layers": 2, "decoder_ffn_dim": 96, "decoder_attention_heads": 4,
    "encoder_layers": 1, "encoder_ffn_dim": 96, "encoder_attention_heads": 4, "max_position_embeddings": 64,
    "pad_token_id": 258, "bos_token_id": 256, "eos_token_id": 257, "decoder_start_token_id": 256, "init_std": 0.3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_bart(folder: Path) -> Any:
    """Write a BART decoder (learned positions, norms after sums, biases), and return transformers' model of it."""
    torch.manual_seed(3)
    model = transformers.BartForCausalLM(transformers.BartConfig(**SIZES)).float().eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return model


def greedy(model: Any, ids: list[int], n: int) -> list[int]:
    out = list(ids)
    with torch.no_grad():
        for _ in range(n):
            out.append(int(model(torch.tensor([out]), use_cache=False).logits[0, -1].argmax()))
    return out[len(ids) :]


def test_a_folder_opens_and_answers_like_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bart"
    model, ids = write_bart(folder), [5, 9, 77, 30, 4]
    expected = greedy(model, ids, 6)
    with LLM(folder, threads=1, kv_dtype="f32") as llm:
        assert llm.generate([ids], max_tokens=6, temperature=0)[0].choices[0].token_ids == expected
    assert "BartForCausalLM" in caplog.text
    # The description is kept: the second time works without transformers.  A converted file needs neither.
    monkeypatch.setitem(sys.modules, "quire.checkpoints.structure.finding", None)
    convert(folder, tmp_path / "bart.gguf", "f32")
    with LLM(tmp_path / "bart.gguf", threads=1, kv_dtype="f32") as llm:
        assert llm.generate([ids], max_tokens=6, temperature=0)[0].choices[0].token_ids == expected


# Classes that have files of their own are tests too: experts stacked in transformers, windows, partial rotations,
# fused matrices, norms that add 1, soft caps, attention without transformers' interface, clamped values.
@pytest.mark.parametrize(
    "name", ["qwen3moe", "gemma2", "gptneox", "cohere2", "minimax-m2", "phi3-plain", "gptneo", "olmo"]
)
def test_descriptions_give_the_logits_of_transformers(name: str) -> None:
    if name == "phi3-plain":
        config = {**config_of("phi3"), "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
        kind = "Phi3ForCausalLM"
    else:
        config, kind = config_of(name), class_of(name)
    document, sample = find(config, kind)
    assert document.kind == kind
    assert module.check(sample) < 1e-5


@pytest.mark.parametrize(
    ("name", "part"),
    [("mistral3", "layer 0 (model.layers.0.self_attn)"), ("jamba", "layer 0"), ("phi3", "longrope")],
)
def test_an_unknown_part_is_named(name: str, part: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        find(config_of(name), class_of(name))
    assert part in str(caught.value)


@cache
def of_qwen3() -> tuple[Any, Any]:
    return find(config_of("qwen3"), "Qwen3ForCausalLM")


def changed(ops: list[dict[str, Any]], how: str) -> list[dict[str, Any]]:
    """Return a layer's operations with one of them changed."""
    made = [dict(op) for op in ops]
    first = {op["op"]: op for op in reversed(made)}
    if how == "epsilon":
        first["norm"]["eps"] = 1e-2
    elif how == "activation":
        first["glu"]["f"] = "gelu"
    elif how == "scale":
        first["attend"]["scale"] *= 1.01
    elif how == "window":
        first["attend"]["window"] = 5
    elif how == "order of norms":
        last = made[-1]
        last["a"] = 0
    return made


@pytest.mark.parametrize("how", ["epsilon", "activation", "scale", "window", "order of norms", "base"])
def test_a_wrong_description_is_refused(how: str) -> None:
    document, sample = of_qwen3()
    program = {**document.program, "kinds": [changed(ops, how) for ops in sample.document.program["kinds"]]}
    if how == "base":
        program["rotations"] = [{**spec, "base": 2 * spec["base"]} for spec in program["rotations"]]
    with pytest.raises(UnsupportedError, match="Qwen3ForCausalLM"):
        module.check(replace(sample, document=replace(sample.document, program=program)))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_version", lambda package: "")
    with pytest.raises(UnsupportedError, match="pip install transformers torch"):
        module.fallback({"model_type": "bart"}, "BartForCausalLM", UNKNOWN)


def test_code_in_the_folder_never_runs(tmp_path: Path) -> None:
    (tmp_path / "modeling_own.py").write_text("raise SystemExit(3)")
    config = {
        "architectures": ["OwnForCausalLM"], "model_type": "own", "vocab_size": 272,
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match=r"'own'.*does not run code"):
        convert(tmp_path, tmp_path / "own.gguf")


@pytest.mark.parametrize(
    "size",
    [
        {"decoder_layers": 10**9}, {"text_config": {"num_hidden_layers": 10**9}}, {"max_position_embeddings": 2**30},
        {"max_position_embeddings": 2**22},
    ],
)  # fmt: skip
def test_enormous_sizes_are_refused_before_the_class_is_made(size: dict[str, Any]) -> None:
    with pytest.raises((LoadError, UnsupportedError), match=r"decoder_layers|num_hidden_layers|too large|memory"):
        find({"model_type": "bart", **SIZES, **size}, "BartForCausalLM")


def test_unfinished_files_of_the_cache_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document, _ = of_qwen3()

    def full(*args: Any) -> None:
        raise OSError("no space left")

    module._write(tmp_path / "kept.json", document)
    monkeypatch.setattr(module.json, "dump", full)
    module._write(tmp_path / "other.json", document)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["kept.json"]
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert module._read(tmp_path / "deep.json") is None


def test_an_unknown_class_of_a_known_type_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="MysteryForCausalLM"):
        find(config_of("qwen3"), "MysteryForCausalLM")


def test_classes_that_are_no_decoders_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="ViTForImageClassification"):
        find({"model_type": "vit"}, "ViTForImageClassification")


def test_a_class_that_changes_with_the_length_is_refused() -> None:
    """BigBird leaves out most scores of texts longer than 704 tokens."""
    config = transformers.BigBirdConfig(
        vocab_size=272, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=1024, is_decoder=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    _, sample = find(config.to_dict(), "BigBirdForCausalLM")
    with pytest.raises(UnsupportedError, match="BigBirdForCausalLM"):
        module.check(sample)
