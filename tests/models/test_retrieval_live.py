"""Sparse vectors and vectors of tokens.  Oracles: transformers' hidden states and logits, combined in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.files.safetensors import SafetensorsFile
from test_encoder_heads_live import write_random
from tiny_checkpoints import write_checkpoint, write_safetensors
from word_pieces import word_piece_json, write_word_pieces

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

Array = npt.NDArray[np.float32]
IDS = [241, 160, 175, 2, 148, 160, 213, 57, 14, 76]


def near(found: Array, expected: Array) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max())


def random(*shape: int) -> Array:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 8).astype(np.float32)


def write_modules(folder: Path, *modules: tuple[str, str, dict[str, object]]) -> None:
    """Write sentence-transformers' modules: class, folder, configuration."""
    listed = [{"idx": i, "path": path, "type": kind} for i, (kind, path, _) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    for _, path, config in modules:
        if path:
            (folder / path).mkdir(exist_ok=True)
            (folder / path / "config.json").write_text(json.dumps(config))


SPLADE = "sentence_transformers.sparse_encoder.models."


@pytest.mark.parametrize(
    ("name", "kind", "activation"),
    [
        ("bert", "BertForMaskedLM", "relu"),
        ("distilbert", "DistilBertForMaskedLM", "log1p_relu"),
        ("roberta", "XLMRobertaForMaskedLM", "relu"),
        ("modern-bert", "ModernBertForMaskedLM", "relu"),
    ],
)
def test_splade(tmp_path: Path, name: str, kind: str, activation: str) -> None:
    changes: dict[str, object] = {"model_type": "xlm-roberta"} if kind.startswith("XLM") else {}
    model = write_random(tmp_path / "hf", name, kind, changes)
    pooling = {"pooling_strategy": "max", "activation_function": activation, "word_embedding_dimension": 272}
    write_modules(
        tmp_path / "hf", (f"{SPLADE}MLMTransformer", "", {}), (f"{SPLADE}SpladePooling", "1_SpladePooling", pooling)
    )
    with torch.no_grad():
        scores = torch.log1p(torch.relu(model(torch.tensor([IDS])).logits[0]))
        scores = torch.log1p(scores) if activation == "log1p_relu" else scores
        expected = scores.max(dim=0).values.numpy()
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    with LLM(tmp_path / "x.gguf", threads=1) as llm:
        assert llm.outputs == ("sparse",)
        one, other = llm.encode([IDS, IDS[:4]], output="sparse")
        dense = np.zeros_like(expected)
        dense[one.indices] = one.values
        assert near(dense, expected)
        assert 0 < len(one.indices) == (expected > 0).sum() < len(expected)
        products = [weight * other.as_dict().get(id, 0.0) for id, weight in one.as_dict().items()]
        assert one.dot(other) == pytest.approx(sum(products), rel=1e-5)
        with pytest.raises(UnsupportedError, match="no dense vectors"):
            llm.embed(IDS)


def test_three_kinds_of_vectors_of_bge_m3(tmp_path: Path) -> None:
    model = write_random(tmp_path, "roberta", "XLMRobertaModel", {"model_type": "xlm-roberta"})
    sparse, sparse_bias, multi, multi_bias = random(1, 64), random(1), random(48, 64), random(48)
    (tmp_path / "sparse_linear.pt").write_bytes(b"")
    (tmp_path / "colbert_linear.pt").write_bytes(b"")
    with LLM(tmp_path, threads=1) as llm, pytest.raises(UnsupportedError, match=r"sparse_linear\.pt is a pickle"):
        llm.encode(IDS, output="sparse")
    write_safetensors(tmp_path / "sparse_linear.safetensors", {"weight": sparse, "bias": sparse_bias})
    write_safetensors(tmp_path / "colbert_linear.safetensors", {"weight": multi, "bias": multi_bias})
    with torch.no_grad():
        hidden = model(torch.tensor([IDS])).last_hidden_state[0].numpy()
    weights = np.maximum(hidden @ sparse[0] + sparse_bias, 0)
    expected = {id: float(max(weights[[i for i, one in enumerate(IDS) if one == id]])) for id in set(IDS)}
    vectors = hidden[1:] @ multi.T + multi_bias
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    convert(tmp_path, tmp_path / "x.gguf", "f32")
    with LLM(tmp_path / "x.gguf", threads=1) as llm:
        assert llm.outputs == ("dense", "sparse", "multi")
        (found,) = llm.encode([IDS], output="sparse")
        assert found.as_dict() == pytest.approx({id: w for id, w in expected.items() if w > 0}, rel=1e-3)
        assert near(llm.encode([IDS], output="multi")[0], vectors)
        assert near(llm.encode([IDS], output="dense"), llm.embed([IDS]))
        with pytest.raises(RequestError, match="'other'"):
            llm.encode(IDS, output="multi", kind="other")  # type: ignore[call-overload]
    write_safetensors(tmp_path / "sparse_linear.safetensors", {"weight": multi, "bias": multi_bias})
    with pytest.raises(LoadError, match="sparse_linear"):
        convert(tmp_path, tmp_path / "y.gguf", "f32")


COLBERT = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12, "document_length": 9}
MARKS = 98, 99  # behind the vocabulary
QUERY, DOCUMENTS = "where is the fox", ["the fox is in the forest.", "a light!", "the lighthouse"]


def write_colbert(folder: Path, changes: dict[str, object]) -> tuple[Any, Array]:
    """Write a folder as PyLate does; return transformers' model and the matrix on its states."""
    model, matrix = write_random(folder, "bert", "BertModel", {}), random(32, 80)
    write_word_pieces(folder)
    words = word_piece_json()
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    words["added_tokens"] += [
        {"id": id, "content": text, **plain} for id, text in zip(MARKS, ("[Q] ", "[D] "), strict=True)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"mask_token": "[MASK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 80, "out_features": 32, "bias": False, "activation_function": identity}
    write_modules(
        folder, ("sentence_transformers.models.Transformer", "", {}), ("pylate.models.Dense.Dense", "1_Dense", dense)
    )
    write_safetensors(folder / "1_Dense" / "model.safetensors", {"linear.weight": matrix})
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**COLBERT, **changes}))
    return model, matrix


@pytest.mark.parametrize("kernels", ["auto", "stock"])
@pytest.mark.parametrize("attends", [False, True])
def test_late_interaction(tmp_path: Path, attends: bool, kernels: str) -> None:
    model, matrix = write_colbert(tmp_path, {"attend_to_expansion_tokens": attends, "skiplist_words": [".", "!"]})
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    vocab = tokenizer.get_vocab()

    def vectors(text: str, is_query: bool) -> Array:
        mark, length = (MARKS[0], 12) if is_query else (MARKS[1], 9)
        ids = tokenizer(text)["input_ids"]
        ids = [ids[0], mark, *ids[1:-1][: length - 3], ids[-1]]
        n_own = len(ids)
        ids += [vocab["[MASK]"]] * (length - n_own) if is_query else []
        seen = torch.tensor([[1 if attends or i < n_own else 0 for i in range(len(ids))]])
        with torch.no_grad():
            hidden = model(torch.tensor([ids]), attention_mask=seen).last_hidden_state[0].numpy() @ matrix.T
        kept = [is_query or tokenizer.convert_ids_to_tokens(id) not in (".", "!") for id in ids]
        made: Array = (hidden / np.linalg.norm(hidden, axis=1, keepdims=True))[kept]
        return made

    convert(tmp_path, tmp_path / "x.gguf", "f32")
    with LLM(tmp_path / "x.gguf", threads=1, kernels=kernels) as llm:  # type: ignore[arg-type]
        assert llm.outputs == ("multi",)
        query = vectors(QUERY, True)
        assert near(llm.encode(QUERY, output="multi", kind="query")[0], query)
        assert near(llm.encode(QUERY, output="multi", prompt_name="query")[0], query)
        expected = [vectors(text, False) for text in DOCUMENTS]
        assert all(map(near, llm.encode(DOCUMENTS, output="multi"), expected))
        scores = np.array([(query @ one.T).max(axis=1).sum() for one in expected], np.float32)
        assert near(llm.rerank(QUERY, DOCUMENTS), scores)


def test_checkpoints_of_colberts_own_code(tmp_path: Path) -> None:
    model, matrix = write_random(tmp_path, "bert", "BertModel", {}), random(32, 80)
    write_word_pieces(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"mask_token": "[MASK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ids = word_piece_json()["model"]["vocab"]
    words = [ids[text] for text in ("[CLS]", "fox", "the", "forest", "[SEP]", "[MASK]", "[MASK]", "[MASK]")]
    with torch.no_grad():
        seen = torch.tensor([[1] * 5 + [0] * 3])
        hidden = model(torch.tensor([words]), attention_mask=seen).last_hidden_state[0].numpy() @ matrix.T
    saved = SafetensorsFile(tmp_path / "model.safetensors")
    tensors = {f"bert.{name}": saved.tensor(name).numpy().copy() for name in saved}
    write_safetensors(tmp_path / "model.safetensors", {**tensors, "linear.weight": matrix})
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    marks = {"query_token_id": "fox", "doc_token_id": "light"}  # words of the tiny vocabulary
    (tmp_path / "artifact.metadata").write_text(json.dumps({**marks, "query_maxlen": 8, "doc_maxlen": 16}))
    with LLM(tmp_path, threads=1) as llm:
        assert near(
            llm.encode("the forest", output="multi", kind="query")[0],
            hidden / np.linalg.norm(hidden, axis=1, keepdims=True),
        )
        (document,) = llm.encode("the forest.", output="multi", kind="document")
        assert document.shape == (5, 32)  # marks count, and punctuation does not


def test_the_sparse_head_of_gte(tmp_path: Path) -> None:
    """Multilingual GTE has a classifier of tokens beside its encoder, whose scores weigh the tokens."""
    write_checkpoint(tmp_path, "gte")
    path = tmp_path / "model.safetensors"
    saved, head = SafetensorsFile(path), {"weight": random(1, 80), "bias": random(1)}
    tensors = {f"new.{name}": saved.tensor(name).numpy().copy() for name in saved}
    write_safetensors(path, tensors | {f"classifier.{name}": values for name, values in head.items()})
    with LLM(tmp_path, threads=1) as llm:
        assert llm.outputs == ("dense", "sparse")
        weights = np.maximum(llm.embed_tokens(IDS)[0] @ head["weight"][0] + head["bias"], 0)
        (found,) = llm.encode([IDS], output="sparse")
        assert found.as_dict() == pytest.approx(
            {id: w for id in set(IDS) if (w := max(weights[[i for i, one in enumerate(IDS) if one == id]])) > 0},
            rel=1e-3,
        )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"query_prefix": "[X] "}, r"\[X\]"),
        ({"query_length": 0}, "query_length"),
        ({"do_query_expansion": "x"}, "do_query"),
    ],
)
def test_options_of_late_interaction_are_checked(tmp_path: Path, changes: dict[str, object], match: str) -> None:
    write_colbert(tmp_path, changes)
    with pytest.raises(LoadError, match=match):
        LLM(tmp_path, threads=1)


def test_other_poolings_of_sparse_vectors_are_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "bert")
    for pooling in ({"pooling_strategy": "sum"}, {"activation_function": "gelu"}, {}):
        write_modules(tmp_path, (f"{SPLADE}MLMTransformer", "", {}), (f"{SPLADE}SpladePooling", "1_Pooling", pooling))
        match = next(iter(pooling), "head for masked tokens")
        with pytest.raises((UnsupportedError, LoadError), match=match):
            convert(tmp_path, tmp_path / "x.gguf", "f32")
