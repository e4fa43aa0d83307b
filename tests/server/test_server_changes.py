"""Routes that fetch, name and delete models: Ollama's and llama-server's, off unless they are allowed.

Oracles: the files of a hub that the test runs; Ollama's and llama-server's documented answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
from quire.hub.preset_options import options_of_preset
from quire.hub.registry import Registry
from quire.server.failures import ApiError
from quire.server.routes.changes import CreateBody, _preset_of
from served import served

TINY = (Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf").read_bytes()


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
        most = answer(client, 4096)  # more than it was trained on: as much as that
        assert most.headers["x-quire-ignored"] == "'options.num_ctx'"
        (row,) = client.get("/api/ps").json()["models"]
        assert row["context_length"] == 2048
    with served(clean, options) as server, server.client() as client:
        told = answer(client, 256)
        assert told.headers["x-quire-ignored"] == "'options.num_ctx'"
        assert told.json()["eval_count"] < 64


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
    assert options_of_preset(preset) == {"adapters": (("style.gguf", 1.0), ("tone.gguf", 0.5))}
    Registry(path).add("b", preset)
    assert Registry(path).presets["b"] == preset
