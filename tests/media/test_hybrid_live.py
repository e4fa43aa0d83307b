"""Images with recurrent layers (Qwen3.5): log-probabilities, and what another question about an image computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM
from quire.engine.media import MediaEncoder
from test_images_live import CHATS, GREEDY, images_of, user
from tiny_media import family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BLOCK = 32
FAMILY = family("qwen35")
PAD = FAMILY.pad_id


@pytest.fixture(scope="module")
def oracle() -> Any:
    return FAMILY.make()


@pytest.fixture(scope="module")
def folder(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("qwen35")
    FAMILY.save(oracle, found)
    return found


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(folder, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=1024, **options)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with opened(folder) as model:
        yield model


def log_probs(oracle: Any, prompt: list[int], chat: list[dict[str, object]], answer: list[int]) -> Any:
    """transformers' log-probabilities ``[answer, n_vocab]`` of the tokens of an answer."""
    tokens = torch.tensor([prompt + answer[:-1]])
    with torch.no_grad():
        logits = oracle(input_ids=tokens, **FAMILY.inputs(oracle, tokens, images_of(chat))).logits
    return torch.log_softmax(logits[0, len(prompt) - 1 :].double(), -1).numpy()


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_log_probs_equal_transformers(folder: Path, oracle: Any, kernels: Any) -> None:
    with opened(folder, kernels=kernels) as model:
        for name, chat in CHATS.items():
            result = model.chat(chat, GREEDY, logprobs=5, bad_token_ids=(PAD,))  # which transformers would count
            answer = result.choices[0].token_ids
            expected = log_probs(oracle, result.prompt_token_ids, chat, answer)
            for token, row in zip(result.choices[0].logprobs or [], expected, strict=True):
                shown = dict(token.top)
                assert len(shown) == 5
                np.testing.assert_allclose(list(shown.values()), row[list(shown)], atol=1e-3, err_msg=name)


def end_of_image(ids: list[int], n: int) -> int:
    """The position behind the rows of the n-th image of a prompt."""
    ends = [i + 1 for i, token in enumerate(ids) if token == PAD and ids[i + 1] != PAD]
    return ends[n]


def test_another_question_computes_only_itself(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []
    encode = MediaEncoder.encode

    def counted(encoder: MediaEncoder, view: Any) -> Any:
        encoded.append(view)
        return encode(encoder, view)

    monkeypatch.setattr(MediaEncoder, "encode", counted)
    for i, size in enumerate(((256, 256), (160, 224), (64, 96), (32, 640))):
        salt = bytes([i])
        chat = [user("look at it, and think for a while: ", size, "is it red, or blue?")]
        llm.chat(chat, GREEDY, salt=salt)
        before = llm.stats().n_computed_tokens
        question = [
            user("look at it, and think for a while: ", size, "who, and why? tell it in " + "many " * i + "words")
        ]
        second = llm.chat(question, GREEDY, salt=salt)
        ids = second.prompt_token_ids
        # The state is kept behind the last whole block of the image.
        assert second.n_cached_tokens == end_of_image(ids, 0) // BLOCK * BLOCK > 0
        assert llm.stats().n_computed_tokens - before == len(ids) - second.n_cached_tokens + 11
        fresh = llm.chat(question, GREEDY, salt=salt + b"fresh")
        assert fresh.n_cached_tokens == 0
        assert second.choices[0].token_ids == fresh.choices[0].token_ids
        assert len(encoded) == i + 1


def test_states_behind_the_first_image_and_the_last(llm: Any) -> None:
    sizes = [(96, 160 + 32 * i) for i in range(6)]

    def ask(n_images: int, question: str, salt: bytes) -> Any:
        parts = [part for i, size in enumerate(sizes[:n_images]) for part in (f"{i}: ", size)]
        return llm.chat([user(*parts, question)], GREEDY, salt=salt)

    for n_images, n_kept in ((6, 6), (5, 5), (4, 4), (3, 1), (2, 1), (1, 1)):
        ids = ask(6, "which?", bytes([n_images])).prompt_token_ids
        again = ask(n_images, "other", bytes([n_images]))
        assert again.n_cached_tokens == end_of_image(ids, n_kept - 1) // BLOCK * BLOCK
        fresh = ask(n_images, "other", b"fresh" + bytes([n_images]))
        assert again.choices[0].token_ids == fresh.choices[0].token_ids
