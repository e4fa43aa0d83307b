"""Classifiers of texts and of tokens on every encoder.  Oracle: transformers, with the same weights.  Needs torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.errors import RequestError, UnsupportedError
from quire.files.safetensors import SafetensorsFile
from tiny_checkpoints import config_of, tokenizer_json, weight_of, write_checkpoint, write_reranker, write_safetensors
from word_pieces import write_word_pieces

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
IDS = [241, 160, 175, 2, 148, 198, 213, 57, 14, 76]
GTE: dict[str, object] = {"model_type": "gte", "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}
CASES: list[tuple[str, str, dict[str, object]]] = [
    ("distilbert", "DistilBertForSequenceClassification", {}),
    ("distilbert", "DistilBertForTokenClassification", {}),
    ("bert", "BertForTokenClassification", {}),
    ("bert", "ErnieForSequenceClassification", {"model_type": "ernie", "use_task_id": True}),
    ("bert", "ErnieForTokenClassification", {"model_type": "ernie"}),
    ("roberta", "RobertaForTokenClassification", {}),
    ("roberta", "XLMRobertaForTokenClassification", {"model_type": "xlm-roberta"}),
    ("roberta", "CamembertForSequenceClassification", {"model_type": "camembert"}),
    ("roberta", "Data2VecTextForSequenceClassification", {"model_type": "data2vec-text"}),
    ("roberta", "Data2VecTextForTokenClassification", {"model_type": "data2vec-text"}),
    ("bert", "RemBertForSequenceClassification", {"model_type": "rembert", "input_embedding_size": 40}),
    ("bert", "RemBertForTokenClassification", {"model_type": "rembert", "input_embedding_size": 40}),
    ("t5encoder", "T5ForTokenClassification", {}),
    ("mt5encoder", "MT5ForTokenClassification", {}),
    ("umt5encoder", "UMT5ForTokenClassification", {}),
    ("electra", "ElectraForTokenClassification", {"embedding_size": 72}),
    ("mpnet", "MPNetForSequenceClassification", {}),
    ("roberta", "GteForSequenceClassification", GTE),
    ("roberta", "GteForTokenClassification", GTE),
    ("albert", "AlbertForSequenceClassification", {"hidden_act": "gelu"}),
    ("albert", "AlbertForTokenClassification", {}),
    ("deberta-v2", "DebertaV2ForSequenceClassification", {"share_att_key": False, "norm_rel_ebd": "none"}),
    ("deberta-v2", "DebertaV2ForTokenClassification", {"position_buckets": -1, "position_biased_input": True}),
    ("deberta-v2", "DebertaV2ForSequenceClassification", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    ("deberta-v2", "DebertaV2ForTokenClassification", {"conv_kernel_size": 3}),
    ("nomic-bert", "NomicBertForSequenceClassification", {}),
    ("nomic-bert", "NomicBertForTokenClassification", {}),
    ("jina-bert-v3", "JinaEmbeddingsV3ForTokenClassification", {}),
    ("modern-bert", "ModernBertForSequenceClassification", {"classifier_pooling": "mean"}),
    ("modern-bert", "ModernBertForTokenClassification", {}),
    ("eurobert", "EuroBertForSequenceClassification", {"classifier_pooling": "bos"}),
    ("eurobert", "EuroBertForSequenceClassification", {"classifier_pooling": "mean"}),
    ("eurobert", "EuroBertForSequenceClassification", {"classifier_pooling": "late"}),
    ("eurobert", "EuroBertForTokenClassification", {}),
]


def write_random(folder: Path, name: str, kind: str, changes: dict[str, object]) -> Any:
    """Write a checkpoint of a class with random weights, and return transformers' model of it."""
    fields = {**config_of(name), "architectures": [kind], "id2label": dict(enumerate(TAGS)), **changes}
    fields["label2id"] = {label: i for i, label in enumerate(TAGS)}
    config = transformers.AutoConfig.for_model(**fields)
    made = getattr(transformers, kind)(config)
    made.save_pretrained(folder)
    saved = SafetensorsFile(folder / "model.safetensors")
    write_safetensors(
        folder / "model.safetensors", {key: weight_of(name, key, tuple(saved.shape(key))) for key in saved}
    )
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize(("name", "kind", "changes"), CASES, ids=[f"{case[1]}-{case[2]}" for case in CASES])
def test_class_scores_equal_transformers(tmp_path: Path, name: str, kind: str, changes: dict[str, object]) -> None:
    model = write_random(tmp_path / "hf", name, kind, changes)
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0].numpy()
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    with LLM(tmp_path / "x.gguf", threads=1) as llm:
        assert llm.labels == tuple(TAGS)
        if expected.ndim == 1:
            found = llm.classify([IDS], raw_scores=True)[0]
        else:
            found = llm.classify_tokens([IDS])[0]
            expected = torch.softmax(torch.from_numpy(expected), -1).numpy()
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


TEXTS = ["The fox is in the forest, where lighthouse lights s\u00e9\u4e2d!", "Is it the  fox?"]


@pytest.mark.parametrize("name", ["bert", "roberta"])  # word pieces, bytes
def test_entities_equal_those_of_the_pipeline(tmp_path: Path, name: str) -> None:
    kind = {"bert": "BertForTokenClassification", "roberta": "RobertaForTokenClassification"}[name]
    model, names = write_random(tmp_path, name, kind, {}), {}
    if name == "bert":
        write_word_pieces(tmp_path)
        names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    else:
        write_reranker(tmp_path / "words")
        (tmp_path / "tokenizer.json").write_bytes((tmp_path / "words" / "tokenizer.json").read_bytes())
    file = str(tmp_path / "tokenizer.json")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file, **names)
    with LLM(tmp_path, threads=1) as llm:
        for aggregation in ("none", "simple", "first", "average", "max"):
            pipeline = transformers.pipeline(
                "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=aggregation, device="cpu"
            )
            for text, found in zip(TEXTS, llm.tag(TEXTS, aggregation=aggregation), strict=True):  # type: ignore[arg-type]
                expected = pipeline(text)
                assert len(found) == len(expected) > 2
                for one, other in zip(found, expected, strict=True):
                    assert one.pop("score") == pytest.approx(float(other.pop("score")), abs=1e-3)
                    assert one == other
        with pytest.raises(RequestError, match="'middle'"):
            llm.tag("x", aggregation="middle")  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="use tag"):
            llm.embed("x")


def test_a_model_without_tags_refuses_them(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "bert")
    with LLM(tmp_path, threads=1) as llm, pytest.raises(UnsupportedError, match="no classifier of tokens"):
        llm.tag("x")


@pytest.mark.parametrize("changes", [{}, {"conv_kernel_size": 3}], ids=["", "convolution"])
def test_texts_of_a_batch_keep_their_distances(tmp_path: Path, changes: dict[str, object]) -> None:
    """DeBERTa: rows of several texts in one step, longer than the distances that have a bucket of their own."""
    model = write_random(tmp_path, "deberta-v2", "DebertaV2Model", {"max_relative_positions": 24, **changes})
    prompts = [(IDS * 9)[:n] for n in (1, 2, 7, 32, 57)]
    with torch.no_grad():
        expected = np.concatenate([model(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in prompts])
    for kernels in ("auto", "stock"):
        with LLM(tmp_path, threads=1, kernels=kernels) as llm:  # type: ignore[arg-type]
            found = np.concatenate(llm.embed_tokens(prompts))
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


def test_convolutions_of_another_width_are_refused(tmp_path: Path) -> None:
    write_random(tmp_path, "deberta-v2", "DebertaV2Model", {"conv_kernel_size": 5})
    with pytest.raises(UnsupportedError, match="conv_kernel_size"):
        LLM(tmp_path)


def test_the_mean_of_llama_with_bidirectional_attention(tmp_path: Path) -> None:
    """The rerankers of Llama Nemotron: a matrix on the mean of all tokens."""
    fields = {**config_of("llama-embed"), "model_type": "llama"}
    model = transformers.LlamaModel(transformers.AutoConfig.for_model(**fields)).float().eval()
    score = torch.nn.Linear(model.config.hidden_size, 1, bias=False)
    weights = {f"model.{name}": value.numpy() for name, value in model.state_dict().items()}
    write_safetensors(tmp_path / "model.safetensors", {**weights, "score.weight": score.weight.detach().numpy()})
    kind = "LlamaBidirectionalForSequenceClassification"
    fields = {**fields, "architectures": [kind], "pooling": "avg", "id2label": {"0": "LABEL_0"}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    with torch.no_grad():
        rows = model(torch.tensor([IDS]), attention_mask=torch.zeros(1, 1, len(IDS), len(IDS))).last_hidden_state[0]
        expected = score(rows.mean(0)).numpy()
    with LLM(tmp_path, threads=1) as llm:
        found = llm.classify([IDS], raw_scores=True)[0]
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
