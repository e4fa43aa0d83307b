"""The class a checkpoint is read as if config.json names another one, several, or none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from quire._native.quant import dequantize
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion.class_names import class_of
from quire.errors import LoadError, UnsupportedError
from quire.gguf import GGUFReader
from quire.models import load_model
from tiny_checkpoints import config_of, shapes_of, weight_of, write_checkpoint, write_safetensors

pytestmark = pytest.mark.python_only

CASES: list[tuple[dict[str, object], str]] = [
    ({"architectures": ["MistralModel"]}, "MistralForCausalLM"),  # e5-mistral-7b-instruct
    ({"architectures": ["Qwen3Model"]}, "Qwen3ForCausalLM"),  # Qwen3-Embedding saved by sentence-transformers
    ({"architectures": ["Gemma2Model"]}, "Gemma2ForCausalLM"),
    ({"architectures": ["Gemma3Model"], "text_config": {}}, "Gemma3ForConditionalGeneration"),
    ({"architectures": ["Gemma3TextModel"]}, "Gemma3TextModel"),
    ({"architectures": ["BertForPreTraining"]}, "BertForMaskedLM"),
    ({"architectures": ["LLaMAForCausalLM"]}, "LlamaForCausalLM"),  # the first conversions of LLaMA
    ({"architectures": ["MyRewardModel", "Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
    ({"architectures": None, "model_type": "mistral"}, "MistralForCausalLM"),
    ({"model_type": "bert"}, "BertForMaskedLM"),  # MiniLM-L12-H384-uncased
    ({"model_type": "t5"}, "T5ForConditionalGeneration"),
    (
        {"architectures": ["OPTForCausalLM"], "model_type": "opt"},
        "OPTForCausalLM",
    ),  # unsupported, and named in the error
]


@pytest.mark.parametrize(("values", "expected"), CASES)
def test_a_configuration_names_its_class_in_several_ways(values: dict[str, object], expected: str) -> None:
    assert class_of(values)[0] == expected


@pytest.mark.parametrize("values", [{}, {"architectures": []}, {"architectures": "x", "model_type": "unheard_of"}])
def test_a_configuration_without_a_class_is_an_error(values: dict[str, object]) -> None:
    with pytest.raises(LoadError, match=repr(values.get("model_type"))):
        class_of(values)


@pytest.mark.parametrize(
    ("tiny", "changes"),
    [
        ("mistral", {"architectures": ["MistralModel"], "tie_word_embeddings": False}),
        ("llama", {"architectures": ["LlamaModel"], "tie_word_embeddings": False}),
        ("qwen3", {"architectures": ["Qwen3Model"]}),
        ("bert", {"architectures": None}),
    ],
)
def test_a_model_without_its_head_has_the_same_tensors(tmp_path: Path, tiny: str, changes: dict[str, object]) -> None:
    write_checkpoint(tmp_path / "whole", tiny)
    shutil.copytree(tmp_path / "whole", tmp_path / "bare")
    bare = {
        name.removeprefix("model."): weight_of(tiny, name, tuple(shape))
        for name, shape in shapes_of(tiny).items()
        if "lm_head" not in name
    }
    write_safetensors(tmp_path / "bare" / "model.safetensors", bare)
    (tmp_path / "bare" / "config.json").write_text(json.dumps(config_of(tiny) | changes))
    for name in ("whole", "bare"):
        convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32")
    whole, found = GGUFReader(tmp_path / "whole.gguf"), GGUFReader(tmp_path / "bare.gguf")
    load_model(found)
    names = {tensor.name for tensor in found.tensors}
    assert names == {tensor.name for tensor in whole.tensors} - {"output.weight"}
    for name in names:
        np.testing.assert_array_equal(dequantize(found.tensor(name)), dequantize(whole.tensor(name)))


def test_a_language_model_without_its_head_is_an_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "mistral", {n: s for n, s in shapes_of("mistral").items() if "lm_head" not in n})
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config_of("mistral") | {"tie_word_embeddings": False}))
    with pytest.raises((LoadError, UnsupportedError), match="head"):
        convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
