"""Whisper with random weights equals transformers': encoder rows, greedy tokens, timestamps, segments of long sounds."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audio_cases import sound
from quire import LLM, convert
from quire.engine.requests.prompts import RequestOptions
from quire.engine.requests.results import collector_of
from quire.engine.requests.transcripts import StepCollector, TranscribeOptions
from quire.engine.requests.whisper import SpeechTokens, WhisperRules, divided
from quire.errors import RequestError, UnsupportedError
from served import served
from tiny_media import speech
from tiny_media.speech import END, FIRST_TIME, NEVER, NO_TIMES, START

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
soundfile = pytest.importorskip("soundfile")

SHORT, LONG = sound(50_000), np.concatenate([sound(480_000), sound(333_333, 1)])


@pytest.fixture(scope="module")
def oracle() -> Any:
    return speech.make()


@pytest.fixture(scope="module")
def folder(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("whisper")
    speech.save(oracle, found)
    return found


@pytest.fixture(scope="module", params=["auto", "stock"])
def llm(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    with LLM(folder, kv_dtype="f32", threads=1, kernels=request.param) as found:
        yield found


def written(llm: LLM, samples: Any, **options: Any) -> tuple[list[int], Any]:
    """Return the tokens of all windows, with those that are forced, and the transcript."""
    steps = llm._transcription(samples, TranscribeOptions(**options), RequestOptions())
    ids: list[int] = []
    while (request := steps.next_request()) is not None:
        collector = StepCollector(steps, collector_of(request))
        done: list[Any] = []
        llm._engine.submit(request, done.extend)
        while not collector.complete:
            while done:
                event = done.pop(0)
                assert not hasattr(event, "error") or event.error == "", event.error
                if event.kind in ("delta", "finish"):
                    collector.add(event)
        ids += [*request.token_ids, *collector._collector.result().token_ids]
    return ids, steps.transcript()


def expected(oracle: Any, samples: Any, **options: Any) -> Any:
    with torch.no_grad():
        found = speech.features(samples)
        return oracle.generate(found["input_features"], attention_mask=found["attention_mask"], **options)


def test_encoder_rows(llm: LLM, oracle: Any) -> None:
    steps = llm._transcription(SHORT, TranscribeOptions(), RequestOptions())
    request = steps.next_request()
    assert request is not None
    assert request.media is not None
    rows = request.media.spans[0][2]
    with torch.no_grad():
        wanted = oracle.model.encoder(speech.features(SHORT)["input_features"]).last_hidden_state[0].numpy()
    assert rows.shape == wanted.shape == (1500, 48)
    assert np.abs(rows - wanted).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(("language", "task"), [("de", "transcribe"), (None, "translate")])
def test_greedy_tokens(llm: LLM, oracle: Any, language: str | None, task: Any) -> None:
    ids, transcript = written(llm, SHORT, language=language, task=task)
    wanted = expected(oracle, SHORT, language=language, task=task)[0].tolist()
    # transformers leaves out the prompt.
    assert ids[4:] == wanted[: len(ids) - 4]
    assert set(wanted[len(ids) - 4 :]) <= {END}
    assert len(ids) > 20
    assert ids[0] == START
    assert transcript.language == {261: "en", 262: "de", 263: "fr"}[ids[1]]
    if language is None:
        with torch.no_grad():
            found = oracle.detect_language(input_features=speech.features(SHORT)["input_features"])
        assert found.tolist() == [ids[1]]
    assert ids[2:4] == [264 if task == "translate" else 265, NO_TIMES]


def test_long_sounds_are_divided_as_by_transformers(llm: LLM, oracle: Any) -> None:
    wanted = expected(oracle, LONG, language="fr", return_timestamps=True, return_segments=True)
    segments = speech.spans(wanted["segments"][0])
    ids, transcript = written(llm, LONG, language="fr", timestamps=True)
    assert ids.count(START) == 2  # windows
    assert [(round(each.start, 3), round(each.end, 3), list(each.tokens)) for each in transcript.segments] == [
        span for span in segments if any(id < END for id in span[2])
    ]
    assert transcript.duration == len(LONG) / 16_000
    # The same text comes without times, and from several threads at once.
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: llm.transcribe((LONG, 16_000), language="fr"), range(2)))
    assert [each.text for each in found] == [transcript.text] * 2
    assert found[0].segments == ()


def test_prompts_come_before_the_start(llm: LLM, oracle: Any) -> None:
    ids, _ = written(llm, SHORT, language="en", prompt=" names: Quire ")
    before = [267, *b" names: Quire"]
    assert ids[: len(before) + 4] == [*before, START, 261, 265, NO_TIMES]
    wanted = expected(oracle, SHORT, language="en", prompt_ids=torch.tensor(before))[0].tolist()
    answer = wanted[wanted.index(START) + 4 :] if START in wanted else wanted
    assert ids[len(before) + 4 :] == answer[: len(ids) - len(before) - 4]
    assert len(answer) > 10
    ids, _ = written(llm, SHORT, language="en", prompt="x" * 50 + " end")  # the end of a long one is kept
    assert ids[:33] == [267, *b"x" * 27, *b" end", START]


def test_refusals(llm: LLM) -> None:
    with pytest.raises(UnsupportedError, match="Spanish"):
        llm.transcribe((SHORT, 16_000), language="es")
    with pytest.raises(RequestError, match="sound"):
        llm.generate("text")
    assert llm.media == ["audio"]
    assert llm.n_ctx == speech.N_CTX


def test_rules_equal_transformers_processors(llm: LLM, oracle: Any) -> None:
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    tokens = SpeechTokens.of(llm.tokenizer, llm.n_vocab)
    assert (tokens.start, tokens.end, tokens.no_times, tokens.blank) == (START, END, NO_TIMES, (32,))
    prompt = [START, 261, 265]
    theirs = [
        SuppressTokensAtBeginLogitsProcessor([32, END], len(prompt)),
        SuppressTokensLogitsProcessor(NEVER),
        WhisperTimeStampLogitsProcessor(oracle.generation_config, len(prompt)),
    ]
    rules = WhisperRules(tokens, len(prompt), (), True, np.array(NEVER))
    rng = np.random.default_rng(5)
    n_forced = 0
    for _ in range(300):
        n = int(rng.integers(0, 8))
        times = np.sort(rng.integers(FIRST_TIME, FIRST_TIME + 1501, n))
        drawn = [*prompt, *np.where(rng.random(n) < 0.6, times, rng.integers(0, END + 1, n)).tolist()]
        logits = (rng.standard_normal(llm.n_vocab) * rng.choice([1, 4, 8])).astype(np.float32)
        wanted = torch.tensor(logits)[None]
        for processor in theirs:
            wanted = processor(torch.tensor([drawn]), wanted)
        found = rules(drawn, logits)
        assert np.array_equal(found, wanted[0].numpy())
        n_forced += bool(np.isneginf(found[:FIRST_TIME]).all())
    assert 30 < n_forced < 270


def test_division() -> None:
    t = FIRST_TIME
    assert divided([t, 1, t + 50, t + 60, 2], t, 3000) == ([([t, 1, t + 50, t + 60], 0, 50)], 100)
    assert divided([t, 1, t + 50, t + 60, 2, t + 70], t, 2000) == (
        [([t, 1, t + 50], 0, 50), ([t + 60, 2, t + 70], 60, 70)], 2000,
    )  # fmt: skip
    assert divided([1, 2], t, 500) == ([([1, 2], 0, 250)], 500)


def test_files_answer_as_the_checkpoint(llm: LLM, folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "whisper.gguf", "f32")
    wanted = llm.transcribe((LONG, 16_000), timestamps=True)
    with LLM(tmp_path / "whisper.gguf", kv_dtype="f32", threads=1, kernels=llm.config.kernels) as found:
        assert found.transcribe((LONG, 16_000), timestamps=True) == wanted
    convert(folder, tmp_path / "half.gguf", "f16")
    with LLM(tmp_path / "half.gguf", threads=1, kernels=llm.config.kernels) as found:
        assert len(found.transcribe((LONG, 16_000), timestamps=True).segments) > 2


def test_over_http(folder: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    soundfile.write(stream, LONG, 16_000, format="WAV", subtype="FLOAT")
    with LLM(folder, kv_dtype="f32", threads=1) as llm:
        wanted = llm.transcribe(stream.getvalue(), language="en", timestamps=True)
        path = tmp_path / "a.wav"
        path.write_bytes(stream.getvalue())
        assert llm.transcribe(str(path), language="en", timestamps=True) == wanted
    with served(tmp_path, ["-m", str(folder)]) as server, server.client() as client:

        def ask(**fields: str) -> Any:
            files = {"file": ("a.wav", stream.getvalue())}
            found = client.post("/v1/audio/transcriptions", data={"language": "en", **fields}, files=files)
            assert found.status_code == 200, found.text
            return found

        verbose = ask(response_format="verbose_json", **{"timestamp_granularities[]": "segment"}).json()
        assert (verbose["language"], verbose["task"]) == ("english", "transcribe")
        assert verbose["duration"] == round(wanted.duration, 3)
        assert verbose["text"] == wanted.text
        for found, segment in zip(verbose["segments"], wanted.segments, strict=True):
            assert (found["text"], found["tokens"]) == (segment.text, list(segment.tokens))
            assert found["start"] == pytest.approx(segment.start, abs=1e-3)
            assert found["avg_logprob"] == pytest.approx(segment.avg_logprob, abs=1e-4)
            assert 0 <= found["no_speech_prob"] < 1
        assert ask(response_format="srt").text.count(" --> ") == len(wanted.segments)
        assert ask(response_format="vtt").text.startswith("WEBVTT\n\n00:00:")
        lines = [line[6:] for line in ask(stream="true").text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines]
        assert len(events) > 2
        assert events[-1]["text"] == "".join(event["delta"] for event in events[:-1]).strip() == wanted.text
        chat = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert chat.status_code == 400, chat.text
        assert client.get("/health").status_code == 200
