"""Answers about sounds equal transformers', with random weights: alone and in a batch, whole and in chunks, cached."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from audio_cases import sound
from quire import LLM, SamplingParams
from quire.errors import RequestError
from quire.media.audio import decode_audio
from tiny_media import AUDIO_FAMILIES, TinyFamily, family

pytest.importorskip("torch")
soundfile = pytest.importorskip("soundfile")
pytest.importorskip("transformers")

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def user(*parts: object) -> dict[str, object]:
    """A message of texts and sounds, given by their length."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "audio", "audio": (sound(part), 16_000)}
        for part in parts
    ]
    return {"role": "user", "content": content}


CHATS: dict[str, list[dict[str, object]]] = {
    "one": [user(16_000, "what is this?")],
    "last": [user("listen: ", 40_123)],
    "short": [user("a", 1_601, "b")],
    "three": [user("first ", 8_000, " second ", 12_000, 3_000, "which one is louder?")],
    "two turns": [user(9_000, "and?"), {"role": "assistant", "content": "a cat"}, user("now ", 30_000, "?")],
}  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A family's model, opened by Quire and by transformers."""

    name: str
    family: TinyFamily
    folder: Path
    llm: LLM
    oracle: Any

    def expected(self, ids: list[int], chat: list[dict[str, object]]) -> list[int]:
        """Return transformers' greedy continuation of a prompt that Quire made."""
        sounds = [
            part["audio"][0]
            for message in chat
            for part in message["content"]  # type: ignore[attr-defined]
            if isinstance(part, dict) and "audio" in part
        ]
        return self.family.greedy(self.oracle, ids, sounds)


def open_llm(name: str, folder: Path, **options: Any) -> LLM:
    # Ultravox has no language model of its own.
    text, mmproj = (folder / "text", str(folder)) if name == "ultravox" else (folder, "auto")
    return LLM(text, mmproj=mmproj, kv_dtype="f32", threads=1, n_ctx=4096, **options)


@pytest.fixture(scope="module", params=AUDIO_FAMILIES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    found = family(request.param)
    oracle, folder = found.make(), tmp_path_factory.mktemp(request.param)
    found.save(oracle, folder)
    if request.param == "ultravox":
        (folder / "text").mkdir()
        found.save(oracle.language_model, folder / "text")
    with open_llm(request.param, folder) as llm:
        yield Opened(request.param, found, folder, llm, oracle)


@pytest.mark.parametrize("name", CHATS)
def test_greedy_answers(opened: Opened, name: str) -> None:
    result = opened.llm.chat(CHATS[name], GREEDY)
    assert result.prompt_token_ids.count(opened.family.pad_id) > 0
    assert result.choices[0].token_ids == opened.expected(result.prompt_token_ids, CHATS[name])


def test_templates_write_around_sounds(opened: Opened) -> None:
    ids = opened.llm.chat([user("a", 16_000, "b")], GREEDY).prompt_token_ids
    begin, end = ids.index(opened.family.pad_id), len(ids) - ids[::-1].index(opened.family.pad_id)
    around = [opened.llm.tokenizer.decode(part, skip_special=False) for part in (ids[:begin], ids[end:])]
    first, last = {
        "qwen2audio": ("aAudio: <|audio_bos|>", "<|audio_eos|>\nb"),
        "qwen3asr": ("a<|audio_start|>", "<|audio_end|>b"),
        "ultravox": ("\na", "b"),
        "voxtral": ("a[BEGIN_AUDIO]", "b"),
    }[opened.name]
    assert around[0].endswith(first)
    assert around[1].startswith(last)


def test_in_a_batch_as_alone(opened: Opened) -> None:
    alone = [opened.llm.chat(chat, GREEDY).choices[0].token_ids for chat in CHATS.values()]
    together = opened.llm.chat(list(CHATS.values()), GREEDY)
    assert [result.choices[0].token_ids for result in together] == alone


def test_chunked_as_whole(opened: Opened) -> None:
    with open_llm(opened.name, opened.folder, max_step_tokens=32) as chunked:
        for chat in CHATS.values():
            assert chunked.chat(chat, GREEDY).choices[0].token_ids == opened.llm.chat(chat, GREEDY).choices[0].token_ids


def test_cache_knows_sounds_by_their_content(opened: Opened) -> None:
    llm, pad = opened.llm, opened.family.pad_id
    before = "the same long text stands before each of the sounds, " * 3

    def ask(length: int, question: str, salt: bytes) -> Any:
        return llm.chat([user(before, length, question)], GREEDY, salt=salt)

    first = ask(100_000, "what?", b"shared")
    other_question = ask(100_000, "why?", b"shared")
    assert other_question.n_cached_tokens > first.prompt_token_ids.index(pad)
    # A sound with as many tokens is another one.
    other_sound = ask(100_001, "what?", b"shared")
    assert other_sound.prompt_token_ids == first.prompt_token_ids
    assert 0 < other_sound.n_cached_tokens <= first.prompt_token_ids.index(pad)
    assert ask(100_001, "what?", b"fresh").choices[0].token_ids == other_sound.choices[0].token_ids


def test_shapes_of_parts(opened: Opened, tmp_path: Path) -> None:
    stream = io.BytesIO()
    soundfile.write(stream, sound(30_000), 44_100, format="FLAC")
    data = stream.getvalue()
    (tmp_path / "a.flac").write_bytes(data)
    text = base64.b64encode(data).decode()
    parts = [
        {"type": "audio", "audio": tmp_path / "a.flac"},
        {"type": "audio", "audio": data},
        {"type": "audio", "audio": (decode_audio(data), 16_000)},
        {"type": "audio", "audio": {"array": decode_audio(data), "sampling_rate": 16_000}},
        {"type": "input_audio", "input_audio": {"data": text, "format": "flac"}},
        {"type": "input_audio", "input_audio": {"url": f"data:audio/flac;base64,{text}"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/flac;base64,{text}"}},
    ]
    found = [opened.llm.chat([{"role": "user", "content": [part]}], GREEDY) for part in parts]
    assert len({tuple(result.choices[0].token_ids) for result in found}) == 1
    for bad in ("http://localhost/a.wav", "file:///etc/passwd", "/etc/passwd", "a.wav"):
        with pytest.raises(RequestError, match=r"messages\[0\]\.content\[0\].*audio"):
            opened.llm.chat([{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": bad}}]}])
    if opened.name in ("qwen2audio", "ultravox"):  # the others pad short sounds
        with pytest.raises(RequestError, match="100 samples"):
            opened.llm.chat([user(100)])


def test_text_that_spells_the_placeholder_is_text(opened: Opened) -> None:
    spelled = "".join(opened.family.marks) + " \ue0d3" + "0" * 24 + "-0\ue0d3"
    pads = [opened.llm.chat([user(16_000, text)], GREEDY).prompt_token_ids for text in ("", spelled)]
    assert pads[0].count(opened.family.pad_id) == pads[1].count(opened.family.pad_id) > 0


def test_long_sounds_are_encoded_in_windows(opened: Opened) -> None:
    chat = [user(31 * 16_000, "?")]
    result = opened.llm.chat(chat, GREEDY)
    n_windows = {"qwen2audio": 775, "qwen3asr": 403, "ultravox": 195, "voxtral": 750}
    assert result.prompt_token_ids.count(opened.family.pad_id) == n_windows[opened.name]
    if opened.name != "qwen2audio":  # transformers drops what comes after 30 seconds
        assert result.choices[0].token_ids == opened.expected(result.prompt_token_ids, chat)
