"""ColQwen2: vectors of an image's tokens, and MaxSim.  Oracle: transformers with the same weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from image_processor_cases import data_url, picture
from quire import LLM
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion.projector import convert_projector
from quire.errors import RequestError, UnsupportedError
from served import served
from tiny_media import TinyFamily, qwen2vl, randomized

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
images = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore")

Array = npt.NDArray[np.float32]
PICTURES = [picture(64, 96), picture(80, 48)]
QUERY = "a page about foxes"
MARKS = (*qwen2vl.MARKS, "<|endoftext|>")


def saved(folder: Path) -> tuple[Any, Any]:
    """Return transformers' model with random weights and its processor, after saving them."""
    torch.manual_seed(5)
    vision = {**qwen2vl.VISION, "embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2}
    inner = transformers.Qwen2VLConfig(text_config=qwen2vl.TEXT, vision_config=vision, **qwen2vl.IDS)
    config = transformers.ColQwen2Config(vlm_config=inner, embedding_dim=24)
    model = randomized(transformers.ColQwen2ForRetrieval(config).eval())
    family = qwen2vl.FAMILY
    TinyFamily(family.make, MARKS, family.pad, family.template, family.processor, family.inputs, family.encoded).save(
        model, folder
    )
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": "<|endoftext|>"}))
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = {name: value for name, value in qwen2vl.PROCESSOR.items() if name != "image_processor_type"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return model, transformers.ColQwen2Processor(Qwen2VLImageProcessorPil(**settings), tokenizer)


def expected_vectors(model: Any, inputs: Any, grid: Any = None) -> Array:
    """Return transformers' vectors; ``grid``: of an image."""
    places = {}
    if grid is not None:
        # Without these, transformers counts an image's tokens like those of a text, unlike the publisher's code.
        kinds = (inputs["input_ids"] == model.config.vlm_config.image_token_id).int()
        places["position_ids"], _ = model.vlm.get_rope_index(
            inputs["input_ids"], image_grid_thw=grid, mm_token_type_ids=kinds
        )
    with torch.no_grad():
        found: Array = model(**inputs, **places).embeddings[0].numpy()
    return found


def close(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


def max_sim(query: Array, pages: Sequence[Array]) -> list[float]:
    return [float((query @ page.T).max(1).sum()) for page in pages]


def test_vectors_and_scores_equal_transformers(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    model, processor = saved(folder)
    query = expected_vectors(model, processor(text=[QUERY]))
    pages = []
    for image in PICTURES:
        inputs = processor(images=[images.fromarray(image)])
        pages.append(expected_vectors(model, inputs, inputs["image_grid_thw"]))
    convert(folder, tmp_path / "x.gguf", "f32")
    convert_projector(folder, tmp_path / "mmproj-x.gguf", "f32")
    scores = max_sim(query, pages)
    prompts = [{"image": image} for image in PICTURES]
    with LLM(tmp_path / "x.gguf", kv_dtype="f32", threads=1, n_ctx=512) as llm:
        assert llm.outputs == ("multi",)
        for found, expected in zip(llm.encode(prompts, output="multi"), pages, strict=True):
            close(found, expected)
        close(llm.encode([QUERY], output="multi", kind="query")[0], query)
        assert llm.rerank(QUERY, prompts) == pytest.approx(scores, rel=1e-4)
        with pytest.raises(UnsupportedError, match="dense"):
            llm.embed(QUERY)
        with pytest.raises(RequestError, match="a text or an image"):
            llm.encode({"prompt": "x", "image": PICTURES[0]}, output="multi")
        with pytest.raises(UnsupportedError, match="logits"):
            llm.rerank(QUERY, prompts, logits=True)
    check_routes(tmp_path, pages[1], scores)


def check_routes(tmp_path: Path, page: Array, scores: list[float]) -> None:
    urls = [data_url(image) for image in PICTURES]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    options = ["-m", str(tmp_path / "hf"), "--kv-dtype", "f32", "-c", "512", "-t", "1"]
    with served(tmp_path, options) as server, server.client() as client:

        def answer(path: str, **body: Any) -> Any:
            found = client.post(path, json=body)
            assert found.status_code == 200, found.text
            return found.json()

        pooled = answer("/pooling", input=[{"image": urls[1]}], task="token_embed")
        close(np.array(pooled["data"][0]["data"], np.float32), page)
        ranked = answer("/rerank", query=QUERY, documents=[{"image": url} for url in urls], return_documents=True)
        found = {each["index"]: each["relevance_score"] for each in ranked["results"]}
        assert [found[0], found[1]] == pytest.approx(scores, rel=1e-4)
        assert ranked["results"][0]["document"]["image"] in urls
        for documents in ({"content": parts}, [{"content": [part]} for part in parts]):
            scored = answer("/score", queries=QUERY, documents=documents)
            assert [each["score"] for each in scored["data"]] == pytest.approx(scores, rel=1e-4)
        for refused in (
            {"queries": QUERY, "documents": parts[0], "logits": True},
            {"queries": QUERY, "documents": {"image": "data:image/png;base64,AAAA"}},
            {"queries": QUERY, "documents": {"content": []}},
            {"queries": QUERY, "documents": [{"content": [parts[0], {"type": "text", "text": "x"}]}]},
        ):
            assert client.post("/score", json=refused).status_code == 400
