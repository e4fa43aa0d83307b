"""Answers about images equal transformers', with random weights: alone and in a batch, whole and in chunks, cached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from tiny_media import FAMILIES, TinyFamily, family

pytest.importorskip("torch")
pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def user(*parts: object) -> dict[str, object]:
    """A message of texts and pictures, given by their size."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": picture(*part)}
        for part in parts
    ]
    return {"role": "user", "content": content}


CHATS: dict[str, list[dict[str, object]]] = {
    "one": [user((64, 64), "what is this?")],
    "last": [user("look at it: ", (97, 211))],
    "wide": [user("a", (32, 640), "b")],
    "tiny": [user((5, 7), "tiny")],
    "three": [user("first ", (64, 96), " second ", (200, 70), (128, 128), "which one is larger?")],
    "two turns": [
        user((64, 64), "and?"), {"role": "assistant", "content": "a cat"}, user("now ", (80, 120), "?"),
    ],
}  # fmt: skip


def parts_of(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def images_of(chat: list[dict[str, object]]) -> list[Any]:
    return [part["image"] for message in chat for part in parts_of(message["content"]) if "image" in part]


@dataclass(frozen=True)
class Opened:
    """A family's model, opened by Quire and by transformers."""

    family: TinyFamily
    folder: Path
    llm: LLM
    oracle: Any

    def expected(self, ids: list[int], chat: list[dict[str, object]]) -> list[int]:
        """Return transformers' greedy continuation of a prompt that Quire made."""
        return self.family.greedy(self.oracle, ids, images_of(chat))


@pytest.fixture(scope="module", params=FAMILIES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    found = family(request.param)
    oracle, folder = found.make(), tmp_path_factory.mktemp(request.param)
    found.save(oracle, folder)
    with LLM(folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=2048) as llm:
        yield Opened(found, folder, llm, oracle)


@pytest.mark.parametrize("name", CHATS)
def test_greedy_answers(opened: Opened, name: str) -> None:
    result = opened.llm.chat(CHATS[name], GREEDY)
    assert result.prompt_token_ids.count(opened.family.pad_id) > 0
    assert result.choices[0].token_ids == opened.expected(result.prompt_token_ids, CHATS[name])


def test_answers_by_ggmls_operators(opened: Opened) -> None:
    with LLM(opened.folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=2048, kernels="stock") as stock:
        for chat in CHATS.values():
            assert stock.chat(chat, GREEDY).choices[0].token_ids == opened.llm.chat(chat, GREEDY).choices[0].token_ids


def test_prompts(opened: Opened) -> None:
    if opened.family.prompter is None:
        pytest.skip("transformers' processor of this family is not built here")
    processor = opened.family.prompter(opened.folder)
    for chat in CHATS.values():
        found = opened.llm.chat(chat, SamplingParams(max_tokens=1)).prompt_token_ids
        shown = [{**message, "content": parts_of(message["content"])} for message in chat]
        text = processor.apply_chat_template(shown, add_generation_prompt=True, tokenize=False)
        images = [Image.fromarray(image) for image in images_of(chat)]
        expected = processor(text=[text], images=images, add_special_tokens=False)["input_ids"]
        assert found == list(np.ravel(expected))


def test_in_a_batch_as_alone(opened: Opened) -> None:
    llm = opened.llm
    alone = [llm.chat(chat, GREEDY).choices[0].token_ids for chat in CHATS.values()]
    together = llm.chat(list(CHATS.values()), GREEDY)
    assert [result.choices[0].token_ids for result in together] == alone


def test_chunked_as_whole(opened: Opened) -> None:
    n = opened.family.max_step_tokens
    with LLM(opened.folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=2048, max_step_tokens=n) as chunked:
        for chat in CHATS.values():
            assert chunked.chat(chat, GREEDY).choices[0].token_ids == opened.llm.chat(chat, GREEDY).choices[0].token_ids


def test_cache_knows_images_by_their_content(opened: Opened) -> None:
    llm, pad = opened.llm, opened.family.pad_id
    before = "the same long text stands before each of the images, " * 3

    def ask(size: tuple[int, int], question: str, salt: bytes) -> Any:
        return llm.chat([user(before, size, question)], GREEDY, salt=salt)

    fresh = {size: ask(size, "what?", b"fresh" + str(size).encode()) for size in ((256, 256), (256, 250))}
    first = ask((256, 256), "what?", b"shared")
    other_question = ask((256, 256), "why?", b"shared")
    # Image and text before it are found again; another image of the same size in tokens is not.
    assert other_question.n_cached_tokens >= len(before) // 32 * 32
    assert other_question.n_cached_tokens > first.prompt_token_ids.index(pad)
    other_image = llm.chat([user(before, (250, 256), "what?")], GREEDY, salt=b"shared")
    # Recurrent layers keep no state before an image.
    assert opened.family.has_state or other_image.n_cached_tokens > 0
    assert other_image.n_cached_tokens <= other_image.prompt_token_ids.index(pad)
    assert first.choices[0].token_ids == fresh[256, 256].choices[0].token_ids
    again = ask((256, 250), "what?", b"shared")
    assert again.choices[0].token_ids == fresh[256, 250].choices[0].token_ids


def test_text_that_spells_the_placeholder_is_text(opened: Opened) -> None:
    spelled = "".join(opened.family.marks) + " \ue0d3" + "0" * 24 + "-0\ue0d3"
    pads = [opened.llm.chat([user((64, 64), text)], GREEDY).prompt_token_ids for text in ("", spelled)]
    assert pads[0].count(opened.family.pad_id) == pads[1].count(opened.family.pad_id) > 0
