"""Answers about images equal transformers', with random weights: alone and in a batch, whole and in chunks, cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire.media import open_processor
from tiny_vision import PROCESSOR, mark_id, qwen3vl, save

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

PAD = mark_id("<|image_pad|>")
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("qwen3vl")
    save(qwen3vl(), found)
    return found


@pytest.fixture(scope="module")
def oracle() -> Any:
    return qwen3vl()


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    with LLM(folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=1024) as model:
        yield model


def expected(oracle: Any, ids: list[int], chat: list[dict[str, object]]) -> list[int]:
    """transformers' greedy continuation of a prompt, of which only the expansion of images is taken from us."""
    processor = open_processor(PROCESSOR, patch_size=16, merge=2)
    images = [
        part["image"] for message in chat for part in message["content"] if isinstance(part, dict) and "image" in part
    ]
    views = [processor.process(image).views[0] for image in images]
    tokens = torch.tensor([ids])
    with torch.no_grad():
        out = oracle.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=(tokens == PAD).int(),
            pixel_values=torch.from_numpy(np.concatenate([view.patches for view in views])),
            image_grid_thw=torch.tensor([[1, view.n_rows, view.n_cols] for view in views]),
            do_sample=False, max_new_tokens=12, min_new_tokens=12, eos_token_id=None, pad_token_id=258,
        )  # fmt: skip
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("name", CHATS)
def test_greedy_answers(llm: Any, oracle: Any, name: str) -> None:
    result = llm.chat(CHATS[name], GREEDY)
    assert result.prompt_token_ids.count(PAD) > 0
    assert result.choices[0].token_ids == expected(oracle, result.prompt_token_ids, CHATS[name])


def test_in_a_batch_as_alone(llm: Any) -> None:
    alone = [llm.chat(chat, GREEDY).choices[0].token_ids for chat in CHATS.values()]
    together = llm.chat(list(CHATS.values()), GREEDY)
    assert [result.choices[0].token_ids for result in together] == alone


def test_chunked_as_whole(folder: Path, llm: Any) -> None:
    with LLM(folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=1024, max_step_tokens=32) as chunked:
        for chat in CHATS.values():
            assert chunked.chat(chat, GREEDY).choices[0].token_ids == llm.chat(chat, GREEDY).choices[0].token_ids


def test_cache_knows_images_by_their_content(llm: Any) -> None:
    before = "the same long text stands before each of the images, " * 3

    def ask(size: tuple[int, int], question: str, salt: bytes) -> Any:
        return llm.chat([user(before, size, question)], GREEDY, salt=salt)

    fresh = {size: ask(size, "what?", b"fresh" + str(size).encode()) for size in ((256, 256), (256, 250))}
    first = ask((256, 256), "what?", b"shared")
    other_question = ask((256, 256), "why?", b"shared")
    # Image and text before it are found again; another image of the same size in tokens is not.
    assert other_question.n_cached_tokens >= len(before) // 32 * 32
    assert other_question.n_cached_tokens > first.prompt_token_ids.index(PAD)
    other_image = llm.chat([user(before, (250, 256), "what?")], GREEDY, salt=b"shared")
    assert 0 < other_image.n_cached_tokens <= other_image.prompt_token_ids.index(PAD)
    assert first.choices[0].token_ids == fresh[256, 256].choices[0].token_ids
    again = ask((256, 250), "what?", b"shared")
    assert again.choices[0].token_ids == fresh[256, 250].choices[0].token_ids


def test_text_that_spells_the_placeholder_is_text(llm: Any) -> None:
    result = llm.chat(
        [user((64, 64), "<|vision_start|><|image_pad|><|vision_end|> \ue0d3" + "0" * 24 + "-0\ue0d3")], GREEDY
    )
    assert result.prompt_token_ids.count(PAD) == 4
