"""Routes that fetch, name and delete models: Ollama's and llama-server's, off unless they are allowed.

Oracles: the files of a hub that the test runs; Ollama's and llama-server's documented answers.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
from local_hub import local_hub
from one_call import call
from quire.hub.registry import Registry
from quire.server.failures import ApiError
from quire.server.routes.changes import CreateBody, _preset_of
from quire.server.service.service import _options_of
from served import served

TINY = (Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf").read_bytes()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/pull", {"model": "org/tiny"}),
        ("DELETE", "/api/delete", {"model": "org/tiny"}),
        ("POST", "/api/copy", {"source": "fake", "destination": "x"}),
        ("POST", "/api/create", {"model": "x", "from": "fake"}),
        ("POST", "/models", {"model": "org/tiny"}),
        ("DELETE", "/models?model=org/tiny", None),
        ("GET", "/models/sse", None),
    ],
)
def test_nothing_changes_unless_it_is_allowed(method: str, path: str, body: Any) -> None:
    answer = call(method, path) if body is None else call(method, path, json=body)
    assert answer.status_code == 403
    assert "--allow-changes" in answer.text


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUIRE_MODELS", str(tmp_path / "models.toml"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path


def test_a_model_is_fetched_named_asked_and_deleted(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    files = {"org/tiny-GGUF": {"tiny-Q8_0.gguf": TINY}, "org/second-GGUF": {"second-Q8_0.gguf": TINY}}
    with local_hub(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with served(clean, ["--allow-changes"]) as server, server.client() as client:
            assert client.get("/api/tags").json() == {"models": []}
            with client.stream("POST", "/api/pull", json={"model": "hf.co/org/tiny-GGUF:Q8_0"}) as answer:
                rows = [json.loads(line) for line in answer.iter_lines()]
            assert rows[0] == {"status": "pulling manifest"}
            assert rows[-1] == {"status": "success"}
            assert max(row.get("completed", 0) for row in rows) == len(TINY)
            name = "org/tiny-GGUF:Q8_0"
            assert [row["name"] for row in client.get("/api/tags").json()["models"]] == [f"{name}:latest"]
            assert client.post("/api/pull", json={"model": "org/absent", "stream": False}).status_code == 404
            made = {
                "model": "me",
                "from": name,
                "system": "Be kind.",
                "parameters": {"temperature": 0, "num_predict": 3},
            }
            assert client.post("/api/create", json={**made, "stream": False}).json() == {"status": "success"}
            assert client.post("/api/copy", json={"source": "me", "destination": "again"}).status_code == 200
            question = {"model": "again", "messages": [{"role": "user", "content": "Who are you?"}], "stream": False}
            answer = client.post("/api/chat", json={**question, "options": {"num_predict": -1}}).json()
            assert answer["eval_count"] == 3
            assert set(Registry().presets) == {"me", "again"}
            # llama-server's way: in the background, with events.
            with client.stream("GET", "/models/sse") as stream:
                lines = stream.iter_lines()
                next(lines)  # the stream is there
                assert client.post("/models", json={"model": "org/second-GGUF"}).json() == {"success": True}
                found = []
                while not found or found[-1]["event"] != "models_reload":
                    line = next(lines)
                    found += [json.loads(line.removeprefix("data: "))] if line.startswith("data: ") else []
            assert [row["event"] for row in found[-2:]] == ["download_finished", "models_reload"]
            assert "org/second-GGUF:Q8_0" in [row["id"] for row in client.get("/v1/models").json()["data"]]
            assert client.delete("/models", params={"model": "org/second-GGUF:Q8_0"}).json() == {"success": True}
            end_s = time.monotonic() + 10
            while True:
                gone = client.request("DELETE", "/api/delete", json={"model": "again"})
                if gone.status_code != 409:
                    break
                assert time.monotonic() < end_s
            assert gone.status_code == 200
            client.request("DELETE", "/api/delete", json={"model": "me"}).raise_for_status()
            client.request("DELETE", "/api/delete", json={"model": name}).raise_for_status()
            assert client.request("DELETE", "/api/delete", json={"model": name}).status_code == 404
            assert client.get("/api/tags").json() == {"models": []}
    assert not list(clean.rglob("*.gguf"))


def test_a_request_gets_the_context_that_it_asks_for(clean: Path) -> None:
    models = clean / "models"
    models.mkdir()
    (models / "tiny.gguf").write_bytes(TINY)
    question = {"model": "tiny", "prompt": "Tell me a story about a fox", "stream": False}

    def answer(client: httpx.Client, n_ctx: int) -> httpx.Response:
        return client.post("/api/generate", json={**question, "options": {"num_ctx": n_ctx, "num_predict": 100}})

    options = ["--models-dir", str(models), "--ctx-size", "64"]
    with served(clean, [*options, "--allow-changes"]) as server, server.client() as client:
        assert answer(client, 64).json()["done_reason"] == "length"
        assert answer(client, 64).json()["eval_count"] < 64
        assert answer(client, 256).json()["eval_count"] > 64
        (row,) = client.get("/api/ps").json()["models"]
        assert row["context_length"] == 256
        assert answer(client, 4096).status_code == 400  # more than it was trained on
    with served(clean, options) as server, server.client() as client:
        refused = answer(client, 256)
        assert refused.status_code == 400
        assert "options.num_ctx must be at most the model's context, 64" in refused.json()["error"]


MODELFILE = '''
# a comment
FROM org/m:Q8_0
PARAMETER temperature 0.5
PARAMETER stop "END"
PARAMETER stop STOP
PARAMETER num_ctx 4096
PARAMETER num_predict -1
SYSTEM """Be kind.
And brief."""
LICENSE MIT
'''


def test_a_modelfile_is_read() -> None:
    preset = _preset_of(CreateBody(model="x", modelfile=MODELFILE), None)
    assert (preset.model, preset.system) == ("org/m:Q8_0", "Be kind.\nAnd brief.")
    assert preset.sampling == {"temperature": 0.5, "stop": ["END", "STOP"]}
    assert preset.options == {"ctx-size": 4096}


def test_a_modelfile_names_adapters_beside_the_models(tmp_path: Path) -> None:
    (tmp_path / "style.gguf").touch()
    body = CreateBody(model="x", modelfile="FROM m\nADAPTER style.gguf")
    assert _preset_of(body, str(tmp_path)).options == {"lora": [str(tmp_path / "style.gguf")]}
    (tmp_path / "tone").mkdir()
    body = CreateBody(model="x", modelfile="FROM m\nADAPTER tone")
    with pytest.raises(ApiError, match="an ADAPTER must be a file beside the models, or a folder of PEFT,"):
        _preset_of(body, str(tmp_path))
    (tmp_path / "tone" / "adapter_config.json").touch()
    assert _preset_of(body, str(tmp_path)).options == {"lora": [str(tmp_path / "tone")]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"modelfile": "SYSTEM x"}, "from must name a model"),
        ({"modelfile": "FROM m\nTEMPLATE x"}, "without TEMPLATE"),
        ({"modelfile": "FROM m\nADAPTER x.gguf"}, "a file beside the models"),
        ({"modelfile": "FROM m\nADAPTER /etc/hostname"}, "a file beside the models"),
        ({"modelfile": "FROM m\nADAPTER ../x.gguf"}, "a file beside the models"),
        ({"modelfile": f"FROM m\nADAPTER {'x' * 300}"}, "a file beside the models"),
        ({"modelfile": "FROM m\nMESSAGE user hi"}, "without MESSAGE"),
        ({"modelfile": "FROM m\nDANCE x"}, "known instructions"),
        ({"modelfile": "FROM m\nPARAMETER num_gpu 1"}, "one is 'num_gpu'"),
        ({"modelfile": "FROM m\nPARAMETER top_p 7"}, "top_p"),
        ({"modelfile": "FROM"}, "lines INSTRUCTION"),
        ({"from_": "m", "parameters": {"wild": 1}}, "one is 'wild'"),
    ],
)
def test_what_a_modelfile_must_not_have(tmp_path: Path, body: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        _preset_of(CreateBody(model="x", **body), str(tmp_path))


def test_a_preset_names_adapters(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[models.a]\nmodel = "m"\nadapters = ["style.gguf", "tone.gguf:0.5"]\n')
    preset = Registry(path).presets["a"]
    assert _options_of(preset) == {"adapters": (("style.gguf", 1.0), ("tone.gguf", 0.5))}
    Registry(path).add("b", preset)
    assert Registry(path).presets["b"] == preset
