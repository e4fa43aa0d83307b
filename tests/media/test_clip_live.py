"""CLIP and SigLIP: vectors of texts and of images.  Oracle: transformers, with the same weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import data_url, picture
from quire import LLM
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.requests.texts import plain_text
from quire.errors import RequestError
from quire.tokenizer import Tokenizer
from served import served
from tiny_checkpoints import byte_characters, tokenizer_json
from token_texts import random_texts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
images = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore")

PICTURES = [picture(64, 96), picture(80, 48)]
LONG = "a photo of cats " * 20
TEXTS = ["It's a photo of two CATS, 12!", "na\u00efve \U0001f600 x", ""]
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 48}
_VISION = {**_SIZES, "num_attention_heads": 3, "hidden_size": 48, "patch_size": 8}
_SIGLIP_TEXT = {**_SIZES, "vocab_size": 259, "max_position_embeddings": 40, "projection_size": 48}


def _clip(folder: Path) -> transformers.CLIPTokenizer:
    """Return a tokenizer of bytes and some words, after saving it."""
    merges = [("c", "a"), ("ca", "t"), ("ca", "t</w>"), ("o", "f</w>"), ("p", "h"), ("cat", "s</w>"), ("'", "s</w>")]
    alphabet = byte_characters()
    texts = [*alphabet, *(byte + "</w>" for byte in alphabet), *map("".join, merges)]
    vocabulary = {text: i for i, text in enumerate([*texts, "<|startoftext|>", "<|endoftext|>"])}
    found = transformers.CLIPTokenizer(vocab=vocabulary, merges=merges)
    found.save_pretrained(folder)
    return found


def _config(kind: str, n_vocab: int) -> Any:
    if kind == "clip":
        text = {**_SIZES, "vocab_size": n_vocab, "max_position_embeddings": 40, "eos_token_id": n_vocab - 1}
        return transformers.CLIPConfig(
            text_config=text, vision_config={**_VISION, "image_size": 32}, projection_dim=24, dtype="float32"
        )
    if kind == "siglip":
        vision = {**_VISION, "image_size": 32}
        return transformers.SiglipConfig(text_config=_SIGLIP_TEXT, vision_config=vision, dtype="float32")
    vision = {**_VISION, "num_patches": 16}
    return transformers.Siglip2Config(text_config=_SIGLIP_TEXT, vision_config=vision, dtype="float32")


PROCESSORS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIP", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}),
    "siglip": ("Siglip", {"size": {"height": 32, "width": 32}, "resample": 2}),
    "siglip2": ("Siglip2", {"patch_size": 8, "max_num_patches": 24}),
}


def saved(kind: str, folder: Path) -> tuple[Any, Any, Any]:
    """Return transformers' model with random weights, its image processor and its tokenizer, after saving them."""
    torch.manual_seed(7)
    tokenizer = None
    if kind == "clip":
        tokenizer = _clip(folder)
    else:
        # The tokenizer of bytes; this tests the padding.  SentencePiece's has tests of its own.
        folder.mkdir(exist_ok=True)
        written = tokenizer_json()
        written["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [257], "tokens": ["</s>"]}},
        }
        (folder / "tokenizer.json").write_text(json.dumps(written))
        (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "</s>", "eos_token": "</s>"}))
    config = _config(kind, len(tokenizer) if tokenizer is not None else 259)
    model = transformers.AutoModel.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    model.save_pretrained(folder)
    name, settings = PROCESSORS[kind]
    processor = getattr(transformers, f"{name}ImageProcessorPil")(**settings)
    fields = {"image_processor_type": f"{name}ImageProcessor", **settings}
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    return model, processor, tokenizer


def token_ids(tokenizer: Any, text: str) -> Any:
    """Return the ids of a text as the model reads it."""
    if tokenizer is not None:
        return tokenizer([text], truncation=True, max_length=40, return_tensors="pt")["input_ids"]
    return torch.tensor([([*text.lower().encode()][:39] + [257] * 40)[:40]])


def expected_texts(model: Any, tokenizer: Any, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return transformers' vectors of texts."""
    given = [token_ids(tokenizer, text) for text in texts]
    with torch.no_grad():
        return np.concatenate([model.get_text_features(input_ids=ids).pooler_output.numpy() for ids in given])


def close(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
def test_vectors_equal_transformers(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "hf"
    model, processor, tokenizer = saved(kind, folder)
    texts, expected, logits = expected_texts(model, tokenizer, TEXTS), [], []
    ids = token_ids(tokenizer, TEXTS[0])
    long = expected_texts(model, tokenizer, [LONG])
    for image in PICTURES:
        with torch.no_grad():
            inputs = processor(images=images.fromarray(image), return_tensors="pt")
            expected.append(model.get_image_features(**inputs).pooler_output.numpy()[0])
            logits.append(float(model(input_ids=ids, **inputs).logits_per_image[0, 0]))
    convert(folder, tmp_path / "x.gguf", "f32")
    convert_projector(folder, tmp_path / "mmproj-x.gguf", "f32")
    for path in (folder, tmp_path / "x.gguf"):
        with LLM(path, kv_dtype="f32", threads=1) as llm:
            assert llm.media == ["image"]
            close(llm.embed(TEXTS, normalize=False), texts)
            prompts: Sequence[Any] = [
                {"image": PICTURES[0]},
                {"prompt": "", "multi_modal_data": {"image": PICTURES[1]}},
            ]
            close(llm.embed(prompts, normalize=False), np.stack(expected))
            both = llm.embed([{"prompt": TEXTS[0]}, prompts[0]])
            cosine = texts[0] @ expected[0] / np.linalg.norm(texts[0]) / np.linalg.norm(expected[0])
            assert float(both[0] @ both[1]) == pytest.approx(float(cosine), abs=1e-3)
            shown = [{"image": image} for image in PICTURES]
            assert float(llm.rerank(TEXTS[0], shown)[0]) == pytest.approx(float(cosine), abs=1e-3)
            assert llm.rerank(TEXTS[0], shown, logits=True) == pytest.approx(logits, rel=1e-3, abs=1e-3)
            assert float(llm.rerank(shown[1], [TEXTS[0]], logits=True)[0]) == pytest.approx(
                logits[1], rel=1e-3, abs=1e-3
            )
            with pytest.raises(RequestError, match="a text or an image"):
                llm.embed({"prompt": "two", "image": PICTURES[0]})
            with pytest.raises(RequestError, match="40 tokens"):
                llm.embed(LONG)
            close(llm.embed(LONG, truncate=True, normalize=False), long)
    if kind == "clip":
        check_routes(tmp_path, folder, unit(texts[0]), unit(expected[1]), logits[1])


def unit(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = vector / np.linalg.norm(vector)
    return found


def check_routes(
    tmp_path: Path, folder: Path, text: np.ndarray[Any, Any], image: np.ndarray[Any, Any], logit: float
) -> None:
    """Compare the routes' vectors and scores of the first text and the second picture."""
    url = data_url(PICTURES[1])
    shown = {"type": "image_url", "image_url": {"url": url}}
    with served(tmp_path, ["-m", str(folder), "-t", "1"]) as server, server.client() as client:

        def vectors(body: dict[str, Any]) -> list[Any]:
            answer = client.post("/v1/embeddings", json=body)
            assert answer.status_code == 200, answer.text
            return [np.array(each["embedding"], np.float32) for each in answer.json()["data"]]

        base64 = url.partition(",")[2]
        inputs = [TEXTS[0], {"image": url}, {"text": TEXTS[0]}, {"image": base64}, {"content": [shown]}]
        for found, wanted in zip(vectors({"input": inputs}), [text, image, text, image, image], strict=True):
            close(found, wanted)
        for parts, wanted in (([shown], image), ([{"type": "text", "text": TEXTS[0]}], text), (TEXTS[0], text)):
            close(vectors({"messages": [{"role": "user", "content": parts}]})[0], wanted)
        cohere = client.post("/v2/embed", json={"images": [url], "input_type": "image"}).json()
        close(np.array(cohere["embeddings"]["float"][0], np.float32), image)
        content = [{"content": [{"type": "text", "text": TEXTS[0]}]}, {"content": [shown]}]
        cohere = client.post("/v2/embed", json={"inputs": content}).json()
        close(np.array(cohere["embeddings"]["float"], np.float32), np.stack([text, image]))
        for asked, wanted in (({}, float(text @ image)), ({"logits": True}, logit)):
            scored = client.post("/score", json={"text_1": TEXTS[0], "text_2": [{"image": url}], **asked}).json()
            assert scored["data"][0]["score"] == pytest.approx(wanted, rel=1e-3, abs=1e-3)
        ranked = client.post("/rerank", json={"query": {"image": url}, "documents": [TEXTS[0], "x"]}).json()
        assert sorted(each["index"] for each in ranked["results"]) == [0, 1]
        both = {"messages": [{"role": "user", "content": [shown, {"type": "text", "text": "x"}]}]}
        for refused in (
            both,
            {"input": {"image": "data:image/png;base64,AAAA"}},
            {"input": [{"image": "https://x/y.png"}]},
        ):
            assert client.post("/v1/embeddings", json=refused).status_code == 400


def test_siglip_reads_texts_as_its_tokenizer_does(tmp_path: Path) -> None:
    pieces = pytest.importorskip("sentencepiece")
    (tmp_path / "texts").write_text("a photo of a cat\ntwo dogs, in the forest\nabcdefghijklmnopqrstuvwxyz 012\n" * 9)
    options = {"vocab_size": 40, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False}
    pieces.SentencePieceTrainer.train(input=str(tmp_path / "texts"), model_prefix=str(tmp_path / "spiece"), **options)
    oracle = transformers.SiglipTokenizer(vocab_file=str(tmp_path / "spiece.model"))
    oracle.save_pretrained(tmp_path)
    ours = Tokenizer.from_pretrained(tmp_path)
    assert ours.vocabulary.special_ids["pad"] == oracle.pad_token_id
    texts = ["A photo of a CAT!", "  two   dogs", "It's 12 o'clock, isn't it?", "...", *random_texts(60, 3, longest=9)]
    for text in texts:
        if "<" not in text:  # texts do not become control tokens
            assert ours.encode(plain_text(text, ours.vocabulary.family)) == oracle(text)["input_ids"], ascii(text)
