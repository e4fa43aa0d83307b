"""Raw prompts with images, in Python and over HTTP, and what servers say about models that read images.

Oracle: the chat with the same image, whose prompt the template makes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire.errors import RequestError
from served import served
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")
images = pytest.importorskip("PIL.Image")

TINY = family("qwen3vl")
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ONE, OTHER = picture(64, 96), picture(97, 61)
BEGIN, END = "<|im_start|>user\n", "what?<|im_end|>\n<|im_start|>assistant\n"
SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("qwen3vl")
    TINY.save(TINY.make(), found)
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, kv_dtype="f32", threads=1, n_ctx=512) as model:
        yield model


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        served(tmp_path_factory.mktemp("server"), ["-m", str(folder), "-c", "512"]) as server,
        server.client() as found,
    ):
        yield found


def png(image: Any) -> bytes:
    stream = io.BytesIO()
    images.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def coded(image: Any) -> str:
    return base64.b64encode(png(image)).decode()


def chat(llm: LLM, *shown: Any) -> Any:
    parts = [{"type": "image", "image": image} for image in shown]
    return llm.chat([{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}], GREEDY)


@pytest.mark.parametrize(
    "prompt",
    [
        {"prompt": f"{BEGIN}<__media__><__media__>{END}", "images": [ONE, OTHER]},
        {"prompt": f"{BEGIN}<__media__><__media__>{END}", "images": [png(ONE), images.fromarray(OTHER)]},
        {"prompt": f"{BEGIN}{SHOWN}{SHOWN}{END}", "images": [ONE, OTHER]},
        {"prompt": f"{BEGIN}<|image_pad|>{SHOWN}{END}", "multi_modal_data": {"image": [ONE, OTHER]}},
        {"prompt_string": f"{BEGIN}<__media__><__media__>{END}", "multimodal_data": [coded(ONE), coded(OTHER)]},
    ],
    ids=["marks", "files", "placeholders", "vLLM", "llama.cpp"],
)
def test_raw_prompts(llm: LLM, prompt: dict[str, Any]) -> None:
    expected = chat(llm, ONE, OTHER)
    (result,) = llm.generate(prompt, GREEDY)
    assert result.prompt_token_ids == expected.prompt_token_ids
    assert result.token_ids == expected.token_ids
    several = llm.generate(["a", prompt, [5, 6]], GREEDY)
    assert several[1].token_ids == expected.token_ids


def test_raw_prompts_with_videos(llm: LLM) -> None:
    frames = [ONE, ONE // 2, ONE // 3]
    parts = [{"type": "video", "video": frames}, {"type": "text", "text": "what?"}]
    expected = llm.chat([{"role": "user", "content": parts}], GREEDY)
    shown = "<|vision_start|><|video_pad|><|vision_end|>"
    for prompt, videos in ((shown, {"videos": [frames]}), (shown, {"multi_modal_data": {"video": np.stack(frames)}}),
                           ("<__media__>", {"video": [images.fromarray(frame) for frame in frames]})):  # fmt: skip
        (result,) = llm.generate({"prompt": f"{BEGIN}{prompt}{END}", **videos}, GREEDY)
        assert result.prompt_token_ids == expected.prompt_token_ids
        assert result.token_ids == expected.token_ids


def test_one_image_and_none(llm: LLM) -> None:
    expected = chat(llm, ONE)
    for data in ({"image": ONE}, {"images": ONE}, {"multi_modal_data": {"image": ONE, "audio": None}}):
        (result,) = llm.generate({"prompt": f"{BEGIN}{SHOWN}{END}", **data}, GREEDY)
        assert result.token_ids == expected.token_ids
    (result,) = llm.generate({"prompt": "a<__media__>b"}, GREEDY)
    assert result.prompt_token_ids == llm.generate("a<__media__>b", GREEDY)[0].prompt_token_ids


@pytest.mark.parametrize(
    "prompt",
    [
        {"prompt": "no place", "images": [ONE]},
        {"prompt": "<__media__>", "images": [ONE, OTHER]},
        {"prompt": "<__media__><__media__>", "images": [ONE]},
        {"prompt": f"<__media__>{SHOWN}", "images": [ONE]},
        {"prompt": f"{SHOWN}{SHOWN}", "images": [ONE]},
        {"prompt": "<__media__>", "images": ["a.png"]},
        {"prompt": "<__media__>", "videos": ["a.mp4"]},
        {"prompt": "<__media__>", "multimodal_data": ["*"]},
        {"prompt": "<__media__>", "audios": [(ONE[0, :, 0].astype("float32"), 16000)]},
    ],
    ids=lambda prompt: " ".join(map(str, prompt))[:40],
)
def test_what_does_not_fit_is_refused(llm: LLM, prompt: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompt, GREEDY)


def test_images_are_refused_where_no_encoder_is(folder: Path) -> None:
    with LLM(folder, mmproj="none", threads=1, n_ctx=128) as text, pytest.raises(RequestError, match="reads text only"):
        text.generate({"prompt": "<__media__>", "images": [ONE]})


def test_completion_routes(client: httpx.Client, llm: LLM) -> None:
    expected = chat(llm, ONE, OTHER)
    mark = client.get("/props").json()["media_marker"]
    assert mark not in ("", "<__media__>")
    data = [coded(ONE), coded(OTHER)]
    for each in (mark, "<__media__>"):
        prompt = {"prompt_string": f"{BEGIN}{each}{each}{END}", "multimodal_data": data}
        body = {"prompt": prompt, "n_predict": 6, "temperature": 0, "ignore_eos": True, "return_tokens": True}
        reply = client.post("/completion", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["tokens"] == expected.token_ids
        assert reply.json()["tokens_evaluated"] == len(expected.prompt_token_ids)
        bad = {**body, "prompt": {**prompt, "multimodal_data": data[:1]}}
        assert client.post("/completion", json=bad).status_code == 400


def test_text_that_spells_a_mark_is_text(client: httpx.Client, llm: LLM) -> None:
    mark = client.get("/props").json()["media_marker"]
    typed = "<__media__>"
    prompt = {"prompt_string": f"{BEGIN}{mark}{typed}{END}", "multimodal_data": [coded(ONE)]}
    reply = client.post("/completion", json={"prompt": prompt, "n_predict": 1}).json()
    parts = [{"type": "image", "image": ONE}, {"type": "text", "text": f"{typed}what?"}]
    expected = llm.chat([{"role": "user", "content": parts}], GREEDY)
    assert reply["tokens_evaluated"] == len(expected.prompt_token_ids)
    # In chats no text is a placeholder, whatever it spells.
    for text in (typed, mark, SHOWN):
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}], "max_tokens": 1}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        result = llm.chat([{"role": "user", "content": [{"type": "text", "text": text}]}], GREEDY)
        assert TINY.pad_id not in result.prompt_token_ids
    # In a raw prompt a placeholder without an image of its own is refused.
    stolen = {"prompt_string": f"{SHOWN}{mark}", "multimodal_data": [coded(ONE)]}
    assert client.post("/completion", json={"prompt": stolen}).status_code == 400


def test_ollamas_generate(client: httpx.Client, llm: LLM) -> None:
    expected = chat(llm, ONE)
    body = {"model": "x", "prompt": "what?", "images": [coded(ONE)], "stream": False}
    body["options"] = {"temperature": 0, "num_predict": 6}
    reply = client.post("/api/generate", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["prompt_eval_count"] == len(expected.prompt_token_ids)
    assert len(reply.json().get("context", [])) < 1000
    raw = client.post("/api/generate", json={**body, "raw": True, "prompt": END})
    assert raw.status_code == 200, raw.text
    assert raw.json()["prompt_eval_count"] == len(expected.prompt_token_ids) - len(
        llm.tokenizer.encode(BEGIN, parse_special=True)
    )
    assert client.post("/api/generate", json={**body, "images": ["*"]}).status_code == 400
    assert client.post("/api/generate", json={**body, "suffix": "a"}).status_code == 400


def test_what_servers_say_about_the_model(client: httpx.Client) -> None:
    assert client.get("/props").json()["modalities"] == {"vision": True, "audio": False, "video": True}
    (model,) = client.get("/v1/models").json()["data"]
    assert model["capabilities"] == ["completion", "multimodal"]
    assert model["architecture"]["input_modalities"] == ["text", "image", "video"]
    assert "vision" in client.post("/api/show", json={"model": model["id"]}).json()["capabilities"]
    assert "vision" in client.get("/api/tags").json()["models"][0]["capabilities"]


def test_vllms_class(folder: Path, llm: LLM) -> None:
    from quire.compat.vllm import LLM as VllmLLM
    from quire.compat.vllm import SamplingParams as VllmParams

    expected = chat(llm, ONE)
    model = VllmLLM(str(folder), max_model_len=512)
    prompt = {"prompt": f"{BEGIN}{SHOWN}{END}", "multi_modal_data": {"image": images.fromarray(ONE)}}
    (output,) = model.generate(prompt, VllmParams(temperature=0, max_tokens=6, ignore_eos=True))
    assert len(output.prompt_token_ids) == len(expected.prompt_token_ids)
    assert output.prompt == prompt["prompt"]


def test_langchain_passes_images(llm: LLM) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.messages import HumanMessage
    from quire.integrations.langchain import ChatQuire

    expected = chat(llm, ONE)
    url = f"data:image/png;base64,{coded(ONE)}"
    model = ChatQuire(llm, temperature=0.0, max_tokens=6)
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "source_type": "base64", "data": coded(ONE), "mime_type": "image/png"},
    ):
        message = HumanMessage(content=[part, {"type": "text", "text": "what?"}])
        answer = model.invoke([message])
        assert answer.usage_metadata["input_tokens"] == len(expected.prompt_token_ids)


def test_llama_index_passes_images(llm: LLM) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core.base.llms.types import ImageBlock, TextBlock
    from llama_index.core.llms import ChatMessage
    from quire.integrations.llama_index import QuireLLM

    expected = chat(llm, ONE)
    blocks = [ImageBlock(image=png(ONE)), TextBlock(text="what?")]
    answer = QuireLLM(llm, temperature=0.0, max_tokens=6).chat([ChatMessage(role="user", blocks=blocks)])
    assert answer.additional_kwargs["prompt_tokens"] == len(expected.prompt_token_ids)
