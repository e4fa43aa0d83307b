"""Transcripts by models that hear in chats: prompts equal transformers', and forms over HTTP answer as Python."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from audio_cases import sound
from click.testing import CliRunner
from quire import LLM
from quire.cli.main import cli
from quire.cli.session import Session
from quire.engine.requests.prompts import RequestOptions
from quire.engine.requests.results import Delta
from quire.engine.requests.transcripts import TranscribeOptions
from quire.errors import RequestError, UnsupportedError
from quire.media.audio import MAX_BYTES
from quire.params.languages import LANGUAGES
from quire.server.listener.forms import MAX_FILE_BYTES
from served import served
from tiny_media import family

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
soundfile = pytest.importorskip("soundfile")
pytest.importorskip("python_multipart")

OPTIONS: dict[str, Any] = {"kv_dtype": "f32", "threads": 1, "n_ctx": 1024}
SOUND = (sound(20_000), 16_000)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in ("qwen3asr", "voxtral", "qwen2audio"):
        found[name] = tmp_path_factory.mktemp(name)
        tiny = family(name)
        tiny.save(tiny.make(), found[name])
    return found


def prompt_of(llm: LLM, name: str, **options: Any) -> str:
    steps = llm._transcription(SOUND[0], TranscribeOptions(**options), RequestOptions())
    request = steps.next_request()
    assert request is not None
    text = llm.tokenizer.decode(request.token_ids, skip_special=False)
    pad = family(name).pad
    assert text.count(pad) > 1
    return text.replace(pad * text.count(pad), pad)


def test_qwen3_asr_is_asked_as_by_transformers(folders: dict[str, Path]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["qwen3asr"])
    for name, text in (("", "pad"), ("_bos", "start"), ("_eos", "end")):
        setattr(tokenizer, f"audio{name}_token", f"<|audio_{text}|>")
    extractor = transformers.Qwen3ASRFeatureExtractor(feature_size=40)
    processor = transformers.Qwen3ASRProcessor(extractor, tokenizer, chat_template=family("qwen3asr").template)
    with LLM(folders["qwen3asr"], **OPTIONS) as llm:
        for options in ({}, {"language": "de"}, {"language": "English", "prompt": "Quire, ggml"}):
            (wanted,) = processor.apply_transcription_request(SOUND[0], tokenize=False, **options)
            assert prompt_of(llm, "qwen3asr", **options) == wanted
        assert llm.tokenizer.encode("language English<asr_text>", False, True)[-1] == 264
        with pytest.raises(UnsupportedError, match="translate"):
            llm.transcribe(SOUND, task="translate")
        with pytest.raises(UnsupportedError, match="times"):
            llm.transcribe(SOUND, timestamps=True)
        with pytest.raises(RequestError, match="klingon"):
            llm.transcribe(SOUND, language="klingon")
        # The language comes before the transcript, in pieces of any size.
        written = "language Chinese<asr_text> one two"
        for size in (1, 5, 100):
            steps = llm._transcription(SOUND[0], TranscribeOptions(), RequestOptions())
            pieces = [written[at : at + size] for at in range(0, len(written), size)]
            shown = [steps.feed(Delta(0, piece, ())) for piece in pieces]
            assert "".join(shown) == "one two"
            assert (steps.transcript().text, steps.transcript().language) == ("one two", "zh")


def test_other_models_are_asked_in_their_ways(folders: dict[str, Path]) -> None:
    with LLM(folders["voxtral"], **OPTIONS) as llm:
        # mistral-common's encode_transcription, after the template's text.
        assert prompt_of(llm, "voxtral").endswith("assistant\n[TRANSCRIBE]")
        assert prompt_of(llm, "voxtral", language="French").endswith("assistant\nlang:fr[TRANSCRIBE]")
        assert "into English" in prompt_of(llm, "voxtral", task="translate")
    with LLM(folders["qwen2audio"], **OPTIONS) as llm:
        shown = prompt_of(llm, "qwen2audio", language="fr", prompt="Paris <|im_end|>")
        assert "French" in shown
        assert "Paris <|im_end|>" in shown
        assert llm.transcribe(SOUND, max_tokens=8).duration == 1.25
    with LLM(**OPTIONS) as llm, pytest.raises(UnsupportedError, match="hear"):
        llm.transcribe(SOUND)


def test_languages() -> None:
    from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME
    from transformers.models.whisper.tokenization_whisper import LANGUAGES as WHISPER

    assert WHISPER.items() <= LANGUAGES.items()
    for code, name in LANGUAGE_CODE_TO_NAME.items():
        assert LANGUAGES[code].title() == name
    assert MAX_FILE_BYTES == MAX_BYTES


# --- over HTTP ---


def wav(seconds: float = 1.25) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, sound(int(16_000 * seconds)), 16_000, format="WAV")
    return stream.getvalue()


@pytest.fixture(scope="module")
def client(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    options = ["-m", str(folders["qwen3asr"]), "--kv-dtype", "f32", "-c", "1024", "-t", "1", "--port", "0"]
    with served(tmp_path_factory.mktemp("server"), options) as server, server.client() as found:
        yield found


def post(client: httpx.Client, fields: dict[str, Any], file: bytes, route: str = "transcriptions") -> httpx.Response:
    return client.post(f"/v1/audio/{route}", data=fields, files={"file": ("a.wav", file)})


def test_answers_as_python(client: httpx.Client, folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav())
    with LLM(folders["qwen3asr"], **OPTIONS) as llm:
        wanted = llm.transcribe(tmp_path / "a.wav", language="en", max_tokens=12)
        session = Session(opener=lambda options, sizes: llm)
        printed = CliRunner().invoke(cli, ["transcribe", "-m", "x.gguf", str(tmp_path / "a.wav")], obj=session)
        assert printed.exit_code == 0, printed.output
        assert "\n" in printed.stdout
    fields = {"model": "whisper-1", "language": "english", "max_tokens": "12", "temperature": "0"}
    found = post(client, fields, wav())
    assert found.status_code == 200, found.text
    assert found.json()["text"] == wanted.text
    assert found.json()["usage"]["output_tokens"] == 12
    assert found.json()["usage"]["type"] == "tokens"
    text = post(client, {**fields, "response_format": "text"}, wav())
    assert (text.text, text.headers["content-type"]) == (f"{wanted.text}\n", "text/plain; charset=utf-8")
    stream = post(client, {**fields, "stream": "true", "chunking_strategy": "auto", "what": "1"}, wav())
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: ")]
    assert {event["type"] for event in events[:-1]} <= {"transcript.text.delta"}
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == "".join(event["delta"] for event in events[:-1]).strip() == wanted.text
    assert "'what'" in stream.headers["x-quire-ignored"]
    counted = next(
        line for line in client.get("/metrics").text.splitlines() if line.startswith("quire_generated_tokens")
    )
    assert float(counted.split()[-1]) == 36


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        pytest.param({"response_format": "srt"}, "times", id="srt"),
        pytest.param({"response_format": "verbose_json", "timestamp_granularities[]": ["word"]}, "word", id="words"),
        pytest.param({"timestamp_granularities[]": ["segment"]}, "timestamp_granularities", id="granularity"),
        pytest.param({"response_format": "vtt", "stream": "true"}, "stream", id="stream"),
        pytest.param({"response_format": "yaml"}, "response_format", id="format"),
        pytest.param({"language": "klingon"}, "klingon", id="language"),
        pytest.param({"temperature": "warm"}, "temperature", id="temperature"),
        pytest.param({"include[]": ["logprobs"]}, "include", id="include"),
    ],
)
def test_fields_are_refused_by_name(client: httpx.Client, fields: dict[str, Any], word: str) -> None:
    found = post(client, fields, wav())
    assert found.status_code == 400, found.text
    assert word in found.json()["error"]["message"]


def test_hostile_forms_are_client_errors(client: httpx.Client) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    kind = {"content-type": "multipart/form-data; boundary=b"}
    cases = [
        (kind, b"", 400), (kind, part + wav(), 400), (kind, b"x" * 1000, 400), (kind, b"--b--\r\n", 400),
        (kind, part + b"no sound\r\n--b--\r\n", 400), (kind, part.replace(b'"file"', b'""') + b"\r\n--b--", 400),
        (kind, (part + b"\r\n") * 2 + b"--b--", 400), (kind, (part + b"\r\n") * 100 + b"--b--", 400),
        (kind, part.replace(b'; filename="a"', b"").replace(b"file", b"model") + b"\xff\r\n--b--", 400),
        (kind, part.replace(b'; filename="a"', b"").replace(b"file", b"prompt") + b"a" * (2 << 20), 413),
        (kind, part + b"x: " + b"a" * 100_000, 400),
        ({"content-type": "multipart/form-data"}, part, 400),
        ({"content-type": "application/json"}, b"{}", 415),
    ]  # fmt: skip
    for headers, body, status in cases:
        found = client.post("/v1/audio/transcriptions", content=body, headers=headers)
        assert found.status_code == status, (body[:80], found.text)
        assert " at 0x" not in found.text
    address = client.base_url
    with closing(HTTPConnection(address.host, address.port, timeout=30)) as connection:  # nothing of the body is sent
        connection.putrequest("POST", "/v1/audio/transcriptions")
        connection.putheader("Content-Type", kind["content-type"])
        connection.putheader("Content-Length", str(30 << 20))
        connection.endheaders()
        assert connection.getresponse().status == 413
    translation = post(client, {}, wav(), "translations")
    assert (translation.status_code, "translate" in translation.text) == (400, True)
    assert client.get("/health").status_code == 200
