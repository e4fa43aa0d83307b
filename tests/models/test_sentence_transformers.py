"""Folders of sentence-transformers.  Oracle: its modules, computed in NumPy on transformers' vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.engine.loading.text_advice import text_advice
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.gguf import GGUFReader, GGUFWriter
from served import served
from tiny_checkpoints import REFERENCES, write_checkpoint, write_reranker, write_safetensors

Array = npt.NDArray[np.float32]
PROMPTS = {"query": "search: ", "document": ""}
MEAN = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
MAX = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": False}
FIRST = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": True}


def reference(name: str) -> tuple[list[int], Array]:
    with np.load(REFERENCES / f"{name}.npz") as stored:
        return stored["prompt"].tolist(), stored["logits"]


def random(*shape: int) -> Array:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 8).astype(np.float32)


def write_module(folder: Path, path: str, config: dict[str, Any], **tensors: Array) -> None:
    (folder / path).mkdir(exist_ok=True)
    (folder / path / "config.json").write_text(json.dumps(config))
    if tensors:
        named = {f"linear.{name}": values for name, values in tensors.items()}
        write_safetensors(folder / path / "model.safetensors", named)


def dense(n_in: int, n_out: int, kind: str = "Identity", bias: bool = False) -> dict[str, Any]:
    place = "linear" if kind == "Identity" else "activation"
    return {
        "in_features": n_in, "out_features": n_out, "bias": bias, "activation_function": f"torch.nn.modules.{place}.{kind}"
    }  # fmt: skip


def write_modules(folder: Path, *kinds: str) -> None:
    listed = [("", "Transformer"), *((f"{i + 1}_{kind}", kind) for i, kind in enumerate(kinds))]
    names = [f"sentence_transformers.models.{kind}" for _, kind in listed]
    modules = [{"idx": i, "path": path, "type": names[i]} for i, (path, _) in enumerate(listed)]
    (folder / "modules.json").write_text(json.dumps(modules))


def near(found: Array, expected: Array) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["gemma-embedding", "t5encoder", "bert"])
def test_two_dense_layers_on_the_mean(tmp_path: Path, name: str) -> None:
    ids, vectors = reference(name)
    dim = vectors.shape[1]
    one, other, bias = random(128, dim), random(48, 128), random(48)
    folder = tmp_path / name
    write_checkpoint(folder, name)
    write_modules(folder, "Pooling", "Dense", "Dense", "Normalize")
    write_module(folder, "1_Pooling", MEAN)
    write_module(folder, "2_Dense", dense(dim, 128), weight=one)
    write_module(folder, "3_Dense", dense(128, 48, bias=True), weight=other, bias=bias)
    expected = other @ (one @ vectors.mean(axis=0)) + bias
    convert(folder, tmp_path / "x.gguf", "f32")
    for path in (folder, tmp_path / "x.gguf"):
        with LLM(path, threads=2) as model:
            assert near(model.embed(ids, normalize=False)[0], expected)
            assert near(model.embed([ids])[0], expected / np.linalg.norm(expected))


def test_a_dense_layer_with_an_activation(tmp_path: Path) -> None:
    ids, vectors = reference("bert")
    weight, bias = random(56, vectors.shape[1]), random(56)
    write_checkpoint(tmp_path, "bert")
    write_modules(tmp_path, "Pooling", "Dense")
    write_module(tmp_path, "1_Pooling", FIRST)
    write_module(tmp_path, "2_Dense", dense(vectors.shape[1], 56, "Tanh", bias=True), weight=weight, bias=bias)
    with LLM(tmp_path, threads=2) as model:
        assert near(model.embed(ids, normalize=False)[0], np.tanh(weight @ vectors[0] + bias))


def test_dense_layers_after_pooling(tmp_path: Path) -> None:
    """Layers that do not commute with pooling, and more than two; and pooling by the maximum."""
    ids, vectors = reference("bert")
    one, bias, other, last = random(56, 80), random(56), random(40, 56), random(24, 40)
    folder = tmp_path / "hf"
    write_checkpoint(folder, "bert")
    write_modules(folder, "Pooling", "Dense", "Dense", "Dense", "Normalize")
    write_module(folder, "2_Dense", dense(80, 56, "Tanh", bias=True), weight=one, bias=bias)
    write_module(folder, "3_Dense", dense(56, 40, "ReLU"), weight=other)
    write_module(folder, "4_Dense", dense(40, 24), weight=last)
    for pooling, pooled in ((MEAN, vectors.mean(axis=0)), (MAX, vectors.max(axis=0)), (FIRST, vectors[0])):
        write_module(folder, "1_Pooling", pooling)
        expected = last @ np.maximum(other @ np.tanh(one @ pooled + bias), 0)
        convert(folder, tmp_path / "x.gguf", "f32")
        with LLM(tmp_path / "x.gguf", threads=2) as model:
            assert near(model.embed(ids, normalize=False)[0], expected)
    with served(tmp_path, [str(tmp_path / "x.gguf")]) as server, server.client() as client:
        (found,) = client.post("/v1/embeddings", json={"input": ids, "normalize": False}).json()["data"]
        assert near(np.array(found["embedding"], np.float32), expected)


def test_the_last_token_of_a_decoder(tmp_path: Path) -> None:
    """As in Qwen3-Embedding, a token that is not an end token follows the text, and its state is the vector."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    folder = tmp_path / "qwen3"
    write_checkpoint(folder, "qwen3")
    words = json.loads((folder / "tokenizer.json").read_text())
    words["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<pad>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<pad>": {"id": "<pad>", "ids": [258], "tokens": ["<pad>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(words))
    write_modules(folder, "Pooling", "Normalize")
    write_module(folder, "1_Pooling", {"pooling_mode_lasttoken": True, "include_prompt": True})
    query = "Instruct: Find passages\nQuery:"
    said = {"prompts": {"query": query, "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    convert(folder, tmp_path / "x.gguf", "f32")
    oracle = transformers.Qwen3ForCausalLM.from_pretrained(folder).eval().model
    for path in (folder, tmp_path / "x.gguf"):
        with LLM(path, threads=2, kv_dtype="f32") as model:
            for name, text in (("query", query + "fox"), ("document", "fox"), (None, "fox")):
                with torch.no_grad():
                    ids = [*model.tokenizer.encode(text, add_special=False), 258]
                    expected = oracle(torch.tensor([ids])).last_hidden_state[0, -1].numpy()
                found = model.embed("fox", prompt_name=name)[0]
                assert near(found, expected / np.linalg.norm(expected))
            assert {257, 258} & model.tokenizer.eog_ids >= {257}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with prompts and a limit of 20 tokens; every byte is a token."""
    folder = tmp_path_factory.mktemp("prompted") / "model"
    write_checkpoint(folder, "roberta")
    write_modules(folder, "Pooling", "Normalize")
    write_module(folder, "1_Pooling", MEAN)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"})
    )
    return folder


def test_prompts_go_before_texts(prompted: Path, tmp_path: Path) -> None:
    convert(prompted, tmp_path / "x.gguf", "f32")
    with LLM(tmp_path / "x.gguf", threads=2) as model:
        assert model.prompts == PROMPTS
        plain, asked = model.embed("the fox"), model.embed("the fox", prompt_name="query")
        assert near(asked, model.embed("search: the fox"))
        assert not near(asked, plain)
        assert near(model.embed("the fox", prompt_name="document"), plain)
        assert near(model.embed_tokens("fox", prompt_name="query")[0], model.embed_tokens("search: fox")[0])
        with pytest.raises(RequestError, match="'passage' is unknown: this model has query, document"):
            model.embed("x", prompt_name="passage")
        with pytest.raises(RequestError, match="not token ids"):
            model.embed([1, 2], prompt_name="query")


def test_a_default_prompt(prompted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "default"
    folder.mkdir()
    for file in prompted.rglob("*"):
        (folder / file.relative_to(prompted)).mkdir() if file.is_dir() else (
            folder / file.relative_to(prompted)
        ).write_bytes(file.read_bytes())
    said = {"prompts": PROMPTS, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    with LLM(folder, threads=1) as model, LLM(prompted, threads=1) as other:
        assert near(model.embed("the fox"), other.embed("search: the fox"))
        assert near(model.embed("the fox", prompt_name="document"), other.embed("the fox"))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**said, "default_prompt_name": "other"}))
    with pytest.raises(LoadError, match="default_prompt_name"):
        LLM(folder)


def test_texts_are_limited_to_the_context_of_the_folder(prompted: Path) -> None:
    with LLM(prompted, threads=1) as model:
        assert model.n_ctx == 20
        with pytest.raises(RequestError, match="context of 20"):
            model.embed("a fox in the forest, and another")
        cut = model.embed("a fox in the forest, and another", truncate=True)
        assert near(cut, model.embed("a fox in the forest,"))
    with LLM(prompted, threads=1, n_ctx=128) as model:
        assert model.embed("a fox in the forest, and another").shape == (1, 64)


def test_prompts_over_http(prompted: Path, tmp_path: Path) -> None:
    convert(prompted, tmp_path / "x.gguf", "f32")
    with LLM(prompted, threads=1) as model:
        expected = model.embed("fox", prompt_name="query")[0]
    with served(tmp_path, [str(tmp_path / "x.gguf")]) as server, server.client() as client:
        for path, body in (
            ("/v1/embeddings", {"input": "fox", "prompt_name": "query"}),
            ("/v1/embeddings", {"input": "fox", "input_type": "search_query"}),
            ("/v1/embeddings", {"input": "fox", "input_type": "query"}),
        ):
            (item,) = client.post(path, json=body).json()["data"]
            assert near(np.array(item["embedding"], np.float32), expected)
        (found,) = client.post("/embed", json={"inputs": "fox", "prompt_name": "query"}).json()
        assert near(np.array(found, np.float32), expected)
        refused = client.post("/v1/embeddings", json={"input": "fox", "prompt_name": "other"})
        assert (refused.status_code, "prompt_name" in refused.text) == (400, True)


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
OLD_NAME = "sbert_ce_default_activation_function"


def write_cross_encoder(folder: Path, config: dict[str, Any], own: dict[str, Any]) -> None:
    write_reranker(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own))


@pytest.mark.parametrize(
    ("config", "own", "expected"),
    [
        ({}, {}, ""),
        ({}, {"activation_fn": IDENTITY}, "identity"),
        ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.1.0"}}, {}, "sigmoid"),
        ({OLD_NAME: IDENTITY, "sentence_transformers": {"activation_fn": IDENTITY}}, {}, "identity"),
        ({OLD_NAME: None}, {"activation_fn": None}, ""),
    ],
)
def test_the_activation_of_scores_is_kept(
    tmp_path: Path, config: dict[str, Any], own: dict[str, Any], expected: str
) -> None:
    write_cross_encoder(tmp_path / "x", config, own)
    convert(tmp_path / "x", tmp_path / "x.gguf", "f32")
    metadata = GGUFReader(tmp_path / "x.gguf").metadata
    assert metadata.text("quire.score.activation", "") == expected
    assert text_advice(metadata).is_score_raw == (expected == "identity")


@pytest.mark.parametrize(
    ("config", "own", "match"),
    [
        ({OLD_NAME: "torch.nn.modules.activation.Tanh"}, {}, f"'{OLD_NAME}' .*Tanh'"),
        ({"sentence_transformers": {"activation_fn": "mine.Sigmoid"}}, {}, "'activation_fn' .* 'mine.Sigmoid'"),
        ({"sentence_transformers": {"activation": "x"}}, {}, "'activation'"),
        ({OLD_NAME: IDENTITY}, {"activation_fn": SIGMOID}, "different activations"),
    ],
)
def test_an_unknown_activation_of_scores_is_rejected(
    tmp_path: Path, config: dict[str, Any], own: dict[str, Any], match: str
) -> None:
    write_cross_encoder(tmp_path / "x", config, own)
    with pytest.raises(UnsupportedError, match=match):
        convert(tmp_path / "x", tmp_path / "x.gguf", "f32")
    with GGUFWriter(tmp_path / "y.gguf", "bert") as writer:
        writer.set("quire.score.activation", "tanh", "string")
    with pytest.raises(LoadError, match=r"quire\.score\.activation 'tanh'"):
        text_advice(GGUFReader(tmp_path / "y.gguf").metadata)


@pytest.mark.parametrize(
    ("modules", "files", "match"),
    [
        (["Pooling", "Router"], {}, "'Router'"),
        (["Pooling", "Dense"], {"2_Dense/config.json": {**dense(64, 8), "activation_function": "torch.nn.ELU"}}, "ELU"),
        (["Pooling", "Dense"], {"2_Dense/config.json": dense(64, 8)}, "has no model.safetensors"),
        (["Pooling"], {"1_Pooling/config.json": {**MEAN, "include_prompt": False}}, "include_prompt"),
        (["Pooling"], {"1_Pooling/config.json": {**MEAN, "other": True}}, "'other'"),
        (["Pooling"], {"sentence_bert_config.json": {"do_lower_case": True}}, "do_lower_case"),
        (["Pooling"], {"sentence_bert_config.json": {"max_seq_length": 0}}, "max_seq_length"),
        (["Pooling"], {"config_sentence_transformers.json": {"prompts": {"query": 3}}}, "query"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_unknown_options_are_rejected(
    tmp_path: Path, modules: list[str], files: dict[str, dict[str, Any]], match: str
) -> None:
    write_checkpoint(tmp_path, "roberta")
    write_modules(tmp_path, *modules)
    write_module(tmp_path, "1_Pooling", MEAN)
    for name, values in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises((UnsupportedError, LoadError), match=match):
        convert(tmp_path, tmp_path / "x.gguf", "f32")


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("modern-bert", {"local_attention": 0}, "local_attention"),
        ("gemma-embedding", {"sliding_window": 0}, "sliding_window"),
        ("gemma-embedding", {"use_bidirectional_attention": None}, "use_bidirectional_attention"),
        ("gemma-embedding", {"use_bidirectional_attention": False}, "use_bidirectional_attention"),
    ],
)
def test_fields_of_attention_are_not_ignored(tmp_path: Path, name: str, changes: dict[str, object], match: str) -> None:
    write_checkpoint(tmp_path, name)
    config = json.loads((tmp_path / "config.json").read_text())
    kept = {key: value for key, value in {**config, **changes}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    with pytest.raises((UnsupportedError, LoadError), match=match):
        convert(tmp_path, tmp_path / "x.gguf", "f32")
