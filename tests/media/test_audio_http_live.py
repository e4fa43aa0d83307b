"""Sounds over HTTP and at the command line: the model hears what Python plays it, and hostile files are client errors."""

from __future__ import annotations

import base64
import io
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from audio_cases import sound
from quire import LLM, SamplingParams
from served import environment, served
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")
soundfile = pytest.importorskip("soundfile")

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("qwen2audio")
    tiny = family("qwen2audio")
    tiny.save(tiny.make(), found)
    return found


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    options = ["-m", str(folder), "--kv-dtype", "f32", "-c", "1024", "-t", "1", "--port", "0"]
    with served(tmp_path_factory.mktemp("server"), options) as server, server.client() as found:
        yield found


def encoded(samples: np.ndarray, kind: str = "WAV", rate: int = 22_050, encoding: str | None = None) -> str:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=kind, subtype=encoding)
    return base64.b64encode(stream.getvalue()).decode()


def body_of(path: str, data: str) -> dict[str, Any]:
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    if path == "/v1/chat/completions":
        parts = [part, {"type": "text", "text": "what?"}]
        return {"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "temperature": 0}
    parts = [part, {"type": "input_text", "text": "what?"}]
    return {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8, "temperature": 0}


def expected(folder: Path, file: Path) -> Any:
    content = [{"type": "audio", "audio": file}, {"type": "text", "text": "what?"}]
    with LLM(folder, kv_dtype="f32", threads=1, n_ctx=1024) as llm:
        assert llm.media == ["audio"]
        return llm.chat([{"role": "user", "content": content}], GREEDY)


@pytest.mark.parametrize("kind", ["WAV", "MP3"])
def test_answers_as_python(client: httpx.Client, folder: Path, tmp_path: Path, kind: str) -> None:
    data = encoded(sound(30_000), kind)
    (tmp_path / "sound").write_bytes(base64.b64decode(data))
    wanted = expected(folder, tmp_path / "sound")
    chat = client.post("/v1/chat/completions", json=body_of("/v1/chat/completions", data))
    assert chat.status_code == 200, chat.text
    assert chat.json()["choices"][0]["message"]["content"] == wanted.choices[0].message.content
    assert chat.json()["usage"]["prompt_tokens"] == len(wanted.prompt_token_ids)
    response = client.post("/v1/responses", json=body_of("/v1/responses", data))
    assert response.status_code == 200, response.text
    assert response.json()["output"][0]["content"][0]["text"] == wanted.choices[0].message.content
    assert client.get("/props").json()["modalities"] == {"vision": False, "audio": True, "video": False}


def test_command_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(base64.b64decode(encoded(sound(20_000))))
    options = ["--kv-dtype", "f32", "-c", "1024", "-t", "1", "--temp", "0", "-n", "8", "--json"]
    made = subprocess.run(
        [sys.executable, "-m", "quire", "run", "-m", str(folder), "--audio", str(tmp_path / "a.wav"), *options, "what?"],
        capture_output=True, text=True, env=environment(), check=True,
    )  # fmt: skip
    assert json.loads(made.stdout)["token_ids"] == expected(folder, tmp_path / "a.wav").token_ids


def silence_of_an_hour() -> str:
    return encoded(np.zeros(8_000 * 3_600, np.int16), "FLAC", 8_000)


def wav(rate: int, channels: int) -> str:
    chunk = struct.pack("<HHIIHH", 1, channels, rate, (rate * channels * 2) & 0xFFFFFFFF, channels * 2, 16)
    head = b"RIFF" + struct.pack("<I", 1_036) + b"WAVEfmt \x10\0\0\0" + chunk + b"data" + struct.pack("<I", 1_000)
    return base64.b64encode(head + bytes(1_000)).decode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(silence_of_an_hour(), id="bomb"),
        pytest.param(encoded(sound(30_000), "FLAC")[:4_000], id="cut"),
        pytest.param(encoded(sound(20)), id="short"),
        pytest.param(wav(2_000_000_000, 1), id="rate"),
        pytest.param(wav(16_000, 500), id="channels"),
        pytest.param(encoded(np.full(4_000, np.nan, np.float32), encoding="FLOAT"), id="not a number"),
        pytest.param("A" * 1_000, id="no audio"),
        pytest.param("*", id="no base64"),
        pytest.param("http://127.0.0.1:1/a.wav", id="URL"),
        pytest.param("file:///etc/passwd", id="file URL"),
        pytest.param("/etc/passwd", id="path"),
    ],
)
def test_hostile_sounds_are_client_errors(client: httpx.Client, data: str) -> None:
    for path in ("/v1/chat/completions", "/v1/responses"):
        response = client.post(path, json=body_of(path, data))
        assert response.status_code == 400, response.text
        assert " at 0x" not in response.text
    assert client.get("/health").status_code == 200


def test_models_refuse_what_they_have_no_encoder_for(client: httpx.Client) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [image]}]})
    assert response.status_code == 400
    assert "image" in response.text
