"""Decoders as rerankers and classifiers.

Oracle: transformers' logits of yes and no, and its sequence classification class.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.engine.loading.ranking import RankTemplate
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.gguf import GGUFReader
from tiny_checkpoints import config_of, shapes_of, tokenizer_json, weight_of, write_checkpoint
from tiny_checkpoints import write_safetensors as write_tensors

torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")

Array = npt.NDArray[np.float32]
QUERY = "Who?"
DOCUMENTS = ["The fox.", "", "A red ball <|im_end|>"]
MARKS = ("<|im_start|>", "<|im_end|>")
# The prompt of the model card.
ASKED = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n'
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def write_words(folder: Path) -> None:
    """Write a tokenizer with yes, no and turn markers, and a context that is long enough for the template."""
    made: dict[str, Any] = tokenizer_json()
    vocab: dict[str, int] = made["model"]["vocab"]
    vocab |= {"ye": 259, "yes": 260, "no": 261}
    made["model"]["merges"] = ["y e", "ye s", "n o"]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    made["pre_tokenizer"] = made["decoder"] = level
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    made["added_tokens"] += [{"id": 262 + i, "content": text, "special": True} for i, text in enumerate(MARKS)]
    made["added_tokens"] = [{**token, **plain} for token in made["added_tokens"]]
    (folder / "tokenizer.json").write_text(json.dumps(made))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))


def ids_of(folder: Path, text: str) -> list[int]:
    ids: list[int] = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def plain_ids(folder: Path, text: str) -> list[int]:
    """Return ids without turn markers."""
    made = json.loads((folder / "tokenizer.json").read_text())
    made["added_tokens"] = []
    ids: list[int] = tokenizers.Tokenizer.from_str(json.dumps(made)).encode(text).ids
    return ids


def asked(folder: Path, document: str, instruction: str = INSTRUCTION) -> list[int]:
    """Return the ids of a question; turn markers inside a document are plain text."""
    whole = ASKED.format(instruction=instruction, query=QUERY, document="\0")
    before, after = whole.split("\0")
    return ids_of(folder, before) + plain_ids(folder, document) + ids_of(folder, after)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("causal") / "Qwen3-Reranker-Tiny"
    write_checkpoint(folder, "qwen3")
    write_words(folder)
    return folder


def odds(folder: Path, prompts: list[list[int]]) -> Array:
    """Return the logit of yes minus that of no."""
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = np.stack([model(torch.tensor([ids])).logits[0, -1].numpy() for ids in prompts])
    found: Array = rows[:, 260] - rows[:, 261]
    return found


def near(found: Array, expected: Array) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max())


def without_head(source: Path, out: Path) -> None:
    """Write the file of a causal model, as other converters do."""
    renamed = source.with_name("plain")
    renamed.mkdir(exist_ok=True)
    for file in source.iterdir():
        (renamed / file.name).write_bytes(file.read_bytes())
    convert(renamed, out, "f32")


@pytest.mark.parametrize("form", ["folder", "converted", "causal"])
def test_yes_or_no(causal: Path, tmp_path: Path, form: str) -> None:
    path = causal
    if form == "converted":
        path = tmp_path / "x.gguf"
        convert(causal, path, "f32")
        reader = GGUFReader(path)
        assert reader.tensor_info("cls.output.weight").shape == (2, 64)
        assert reader.metadata.integer("qwen3.pooling_type") == 4
        assert list(reader.metadata.strings("qwen3.classifier.output_labels")) == [b"yes", b"no"]
        template = reader.metadata.text("tokenizer.chat_template.rerank")
        assert template == ASKED.replace("{instruction}", INSTRUCTION)
    if form == "causal":
        path = tmp_path / "plain.gguf"
        without_head(causal, path)
        path = with_name(path, tmp_path / "named.gguf")
    expected = odds(causal, [asked(causal, document) for document in DOCUMENTS])
    with LLM(path, threads=2, kv_dtype="f32") as model:
        assert near(model.rerank(QUERY, DOCUMENTS), expected)
        found = model.classify([(QUERY, document) for document in DOCUMENTS])
        assert model.labels == ("yes", "no")
        assert np.abs(found[:, 0] - 1 / (1 + np.exp(-expected))).max() < 1e-3
        other = "Is it about animals?"
        assert near(
            model.rerank(QUERY, DOCUMENTS[:1], instruction=other), odds(causal, [asked(causal, DOCUMENTS[0], other)])
        )
        # The model can still generate, and its hidden states are available.
        assert model.generate("x", max_tokens=2)[0].choices[0].token_ids
        assert model.embed("x").shape == (1, 64)


def with_name(path: Path, out: Path) -> Path:
    """Copy the file with a name that identifies the model."""
    from gguf import GGUFReader as Reader
    from gguf import GGUFWriter as Writer

    reader = Reader(path)
    writer = Writer(str(out), "qwen3")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = "Qwen3 Reranker Tiny" if name == "general.name" else field.contents()
        writer.add_key_value(name, value, field.types[0], sub_type=field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_documents_are_truncated(causal: Path) -> None:
    long = "fox " * 400
    fixed = len(asked(causal, ""))
    with LLM(causal, threads=2, kv_dtype="f32") as model:
        with pytest.raises(RequestError, match="context of 1024"):
            model.rerank(QUERY, [long])
        expected = odds(causal, [asked(causal, long[: n - fixed]) for n in (1024, 700)])
        found = [model.rerank(QUERY, [long], truncate=n)[0] for n in (True, 700)]
        assert near(np.array(found), expected)
        with pytest.raises(RequestError, match="tokens are too few"):
            model.rerank(QUERY, [long], truncate=100)


@pytest.mark.parametrize("family", ["Qwen3", "Qwen2", "Llama", "Gemma2"])
def test_a_decoder_with_a_classifier(tmp_path: Path, family: str) -> None:
    tiny, kind = family.lower(), f"{family}ForSequenceClassification"
    folder = tmp_path / "scores"
    folder.mkdir()
    labels = {"0": "bad", "1": "fair", "2": "good"}
    config = {
        **config_of(tiny), "architectures": [kind], "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()}, "pad_token_id": 258,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    shapes = {**shapes_of(tiny), "score.weight": [3, int(str(config["hidden_size"]))]}
    shapes.pop("lm_head.weight", None)
    write_tensors(
        folder / "model.safetensors", {name: weight_of("scores", name, tuple(shape)) for name, shape in shapes.items()}
    )
    ids = [list(range(i, i + n)) for i, n in ((7, 30), (60, 1), (90, 77))]
    oracle = getattr(transformers, kind).from_pretrained(folder).eval()
    with torch.no_grad():
        scores = np.concatenate([oracle(torch.tensor([row])).logits.numpy() for row in ids])
    powers = np.exp(scores)
    with LLM(folder, threads=2, kv_dtype="f32") as model:
        assert model.labels == ("bad", "fair", "good")
        assert near(model.classify(ids), powers / powers.sum(axis=1, keepdims=True))
        with pytest.raises(UnsupportedError, match="cannot join texts"):
            model.rerank("a", ["b"])
        with pytest.raises(UnsupportedError, match="no template"):
            model.rerank("a", ["b"], instruction="c")


def test_templates_without_placeholders_are_rejected() -> None:
    with pytest.raises(LoadError, match=r"one \{query\}"):
        RankTemplate("{document} {query}")
    with pytest.raises(UnsupportedError, match="no place for an instruction"):
        RankTemplate("{query}: {document}").segments("a", "b", "c")
