"""Decoders with classifiers of texts and of tokens.  Oracle: transformers, with the same weights.  Needs torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire._native.quant import dequantize
from quire.engine import LLM
from quire.files.safetensors import SafetensorsFile
from quire.models.decoder_heads import HF, Headed
from tiny_checkpoints import (
    CONFIGS,
    MADE_TENSORS,
    class_of,
    config_of,
    tokenizer_json,
    weight_of,
    write_checkpoint,
    write_safetensors,
)

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

Array = npt.NDArray[np.float32]
LABELS = ["bad", "fair", "good"]
IDS = [list(range(i, i + n)) for i, n in ((7, 20), (60, 1))]
# All classes of one kind run the same code.  The gate takes those whose mappings differ most.
IN_GATE = (
    "BloomForSequenceClassification", "BloomForTokenClassification", "GPT2ForSequenceClassification",
    "GPT2ForTokenClassification", "JambaForSequenceClassification", "MistralForTokenClassification",
    "Gemma3TextForSequenceClassification", "Qwen3MoeForTokenClassification", "OPTForSequenceClassification",
    "StableLmForSequenceClassification",
)  # fmt: skip
KINDS = [
    name if name in IN_GATE else pytest.param(name, marks=pytest.mark.slow)
    for name in HF
    if hasattr(transformers, name)
]


def tiny_of(causal: str) -> str:
    """Return the tiny configuration of a class."""
    return next(name for name in CONFIGS if class_of(name) == causal)


def write_random(folder: Path, kind: str, tiny: str) -> Any:
    """Write a checkpoint with random weights, and return transformers' model of it."""
    fields = {**config_of(tiny), "architectures": [kind], "id2label": dict(enumerate(LABELS)), "pad_token_id": 258}
    fields["label2id"] = {label: i for i, label in enumerate(LABELS)}
    (folder / "config.json").write_text(json.dumps(fields))
    config = transformers.AutoConfig.from_pretrained(folder)
    getattr(transformers, kind)(config).save_pretrained(folder)
    saved = SafetensorsFile(folder / "model.safetensors")
    values = {
        name: dequantize(saved.tensor(name))  # it follows from the configuration
        if name.endswith(MADE_TENSORS)
        else weight_of(tiny, name, tuple(saved.shape(name)))
        for name in saved
    }
    write_safetensors(folder / "model.safetensors", values)
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def near(found: Array, expected: Array) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_class_scores_equal_transformers(tmp_path: Path, kind: str) -> None:
    mapping = HF[kind]
    assert isinstance(mapping, Headed)
    model = write_random(tmp_path, kind, tiny_of(mapping.causal))
    with torch.no_grad():
        expected = [model(torch.tensor([ids])).logits[0].numpy() for ids in IDS]
    with LLM(tmp_path, threads=1, kv_dtype="f32") as llm:
        assert llm.labels == tuple(LABELS)
        if kind.endswith("ForTokenClassification"):
            assert (llm.scores_tokens, llm.scores_classes) == (True, False)
            found = llm.classify_tokens(IDS, raw_scores=True)
        else:
            found = list(llm.classify(IDS, raw_scores=True))
    for ours, theirs in zip(found, expected, strict=True):
        assert near(ours, theirs)


@pytest.mark.parametrize("kind", ["Qwen2ForRewardModel", "Qwen2ForProcessRewardModel"])
def test_rewards_of_a_layer_and_a_matrix(tmp_path: Path, kind: str) -> None:
    """Their own code puts a layer with ReLU before the classifier."""
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(**config_of("qwen2"))
    model = transformers.Qwen2Model(config).float().eval()
    n = 1 if kind == "Qwen2ForRewardModel" else 2
    layers = [torch.nn.Linear(config.hidden_size, size) for size in (config.hidden_size, n)]
    score = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    weights = {f"model.{name}": value.numpy() for name, value in model.state_dict().items()}
    weights |= {f"score.{name}": value.numpy() for name, value in score.state_dict().items()}
    write_safetensors(tmp_path / "model.safetensors", weights)
    (tmp_path / "config.json").write_text(json.dumps({**config_of("qwen2"), "architectures": [kind]}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    with torch.no_grad():
        expected = [score(model(torch.tensor([ids])).last_hidden_state[0]).numpy() for ids in IDS]
    with LLM(tmp_path, threads=1, kv_dtype="f32") as llm:
        if n == 1:
            assert llm.labels == ("reward",)
            assert near(llm.classify(IDS), np.stack([rows[-1] for rows in expected]))  # as it is, no probability
        else:
            for ours, theirs in zip(llm.classify_tokens(IDS, raw_scores=True), expected, strict=True):
                assert near(ours, theirs)


def test_rewards_of_internlm2(tmp_path: Path) -> None:
    """The matrix is a row of the output matrix here, so that a logit of the decoder is the reward."""
    write_checkpoint(tmp_path / "causal", "internlm2")
    with LLM(tmp_path / "causal", threads=1, kv_dtype="f32") as llm:
        expected = np.stack([llm.logits(ids)[-1, 5:6] for ids in IDS])
    file, folder = SafetensorsFile(tmp_path / "causal" / "model.safetensors"), tmp_path / "reward"
    values = {name: dequantize(file.tensor(name)) for name in file}
    values["v_head.weight"] = values.pop("output.weight")[5:6]
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", values)
    config = {**config_of("internlm2"), "architectures": ["InternLM2ForRewardModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    with LLM(folder, threads=1, kv_dtype="f32") as llm:
        assert near(llm.classify(IDS), expected)
