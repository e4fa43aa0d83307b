"""Routes that download, name and delete models, as in Ollama and llama-server; off by default.

Oracles: the files of a local test hub; the documented answers of Ollama and llama-server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
from quire.errors import RequestError
from quire.hub.preset_options import options_of_preset
from quire.hub.registry import Preset, Registry
from quire.server.failures import ApiError
from quire.server.routes.modelfile import read_modelfile
from quire.server.routes.presets import CreateBody, preset_of_body
from served import served

TINY = (Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf").read_bytes()


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUIRE_MODELS", str(tmp_path / "models.toml"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return tmp_path


def test_a_request_gets_the_context_it_asks_for(clean: Path) -> None:
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
        most = answer(client, 4096)  # more than it was trained on, so limited to that
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
    preset = preset_of_body(CreateBody(model="x", modelfile=MODELFILE), None)
    assert (preset.model, preset.system) == ("org/m:Q8_0", "Be kind.\nAnd brief.")
    assert preset.sampling == {"temperature": 0.5, "stop": ["END", "STOP"]}
    assert preset.options == {"ctx-size": 4096}


def test_a_modelfile_names_adapters_beside_the_models(tmp_path: Path) -> None:
    (tmp_path / "style.gguf").touch()
    body = CreateBody(model="x", modelfile="FROM m\nADAPTER style.gguf")
    assert preset_of_body(body, str(tmp_path)).options == {"lora": [str(tmp_path / "style.gguf")]}
    (tmp_path / "tone").mkdir()
    body = CreateBody(model="x", modelfile="FROM m\nADAPTER tone")
    with pytest.raises(ApiError, match="'tone'"):
        preset_of_body(body, str(tmp_path))
    (tmp_path / "tone" / "adapter_config.json").touch()
    assert preset_of_body(body, str(tmp_path)).options == {"lora": [str(tmp_path / "tone")]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"modelfile": "SYSTEM x"}, "from"),
        ({"modelfile": "FROM m\nTEMPLATE {{ printf .System }}"}, "printf"),
        ({"from_": "m", "template": "{% for %}"}, "TEMPLATE"),
        ({"modelfile": "FROM m\nADAPTER x.gguf"}, "adapter 'x.gguf'"),
        ({"modelfile": "FROM m\nADAPTER /etc/hostname"}, "adapter '/etc/hostname'"),
        ({"modelfile": "FROM m\nADAPTER ../x.gguf"}, "adapter '../x.gguf'"),
        ({"modelfile": f"FROM m\nADAPTER {'x' * 300}"}, "adapter 'xxx"),
        ({"modelfile": "FROM m\nMESSAGE user hi"}, "MESSAGE"),
        ({"modelfile": "FROM m\nDANCE x"}, "'DANCE'"),
        ({"modelfile": "FROM m\nPARAMETER num_gpu 1"}, "'num_gpu'"),
        ({"modelfile": "FROM m\nPARAMETER top_p 7"}, "top_p"),
        ({"modelfile": "FROM"}, "'FROM'"),
        ({"modelfile": 'FROM m\nSYSTEM """never closed\nx'}, "not closed"),
        ({"modelfile": 'FROM m\nSYSTEM """a""" b'}, "after its closing quotes"),
        ({"modelfile": "FROM m\nPARAMETER num_ctx many"}, "n_ctx"),
        ({"from_": "m", "parameters": {"num_ctx": [1]}}, "n_ctx"),
        ({"from_": "m", "parameters": {"temperature": "hot"}}, "temperature"),
        ({"from_": "m", "parameters": {"temperature": float("nan")}}, "temperature"),
        ({"from_": "m", "parameters": {"stop": [None]}}, "stop"),
        ({"from_": "m", "parameters": {"top_k": {"a": 1}}}, "top_k"),
        ({"from_": "m", "system": "x" * (1 << 21)}, "2097152 characters"),
        ({"from_": "m", "parameters": {"wild": 1}}, "'wild'"),
    ],
)
def test_unsupported_instructions_of_a_modelfile(tmp_path: Path, body: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        preset_of_body(CreateBody(model="x", **body), str(tmp_path))


def test_null_parameters_count_as_absent() -> None:
    body = CreateBody(model="x", from_="m", parameters={"temperature": None, "num_ctx": None, "stop": None, "seed": 3})
    preset = preset_of_body(body, None)
    assert (preset.sampling, preset.options) == ({"seed": 3}, {})


@pytest.mark.parametrize(
    "line", ["", " ", "\t", "#", "# comment", "LICENSE x", "PARAMETER stop x", 'LICENSE """\n"""'], ids=repr
)
def test_a_modelfile_is_read_in_linear_time(line: str) -> None:
    text = "FROM m\n" + f"{line}\n" * 50_000
    started = time.process_time()
    read_modelfile(text)
    assert time.process_time() - started < 3.0  # 39 KiB of newlines took 5 s


def test_a_modelfile_keeps_the_lines_of_a_system_message() -> None:
    read = read_modelfile('FROM m\r\nSYSTEM """\r\nOne.\n# no comment\n\n  Two.\n"""\nREQUIRES 1\n')
    assert read.system == "One.\n# no comment\n\n  Two."
    assert read_modelfile('FROM m\nSYSTEM "Be brief."').system == "Be brief."
    assert read_modelfile("from m\nparameter\ttop_k\t7").parameters == [("top_k", 7)]


def test_modelfiles_shown_by_ollama_are_read() -> None:
    read = read_modelfile(
        '# by "ollama show"\nFROM "./m.gguf"\nRENDERER qwen3-coder\nPARSER qwen3-coder\nPARAMETER num_keep 24\n'
        'PARAMETER stop "<|eot_id|>"\nSYSTEM "You say ""yes"".\nAnd \'no\'."\nPARAMETER penalize_newline false\n'
    )
    assert (read.model, read.system) == ("./m.gguf", 'You say ""yes"".\nAnd \'no\'.')
    assert (read.parameters, read.ignored) == ([("stop", "<|eot_id|>")], ["num_keep", "penalize_newline"])
    with pytest.raises(ApiError, match="not closed"):
        read_modelfile('FROM m\nSYSTEM "never closed\nx')


WRONG: list[dict[str, Any]] = [
    {"sampling": {"temperature": None}},
    {"sampling": {"temperature": float("nan")}},
    {"sampling": {"temperature": float("inf")}},
    {"sampling": {"stop": ["\ud800"]}},
    {"sampling": {"stop": [None]}},
    {"options": {"ctx-size": None}},
    {"options": {"x": object}},
    {"system": "\ud800"},
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: str(fields)[:40])
def test_an_unreadable_registry_is_never_written(tmp_path: Path, fields: dict[str, Any]) -> None:
    registry = Registry(tmp_path / "models.toml")
    registry.add("good", Preset("org/m", "Be kind.\n\x00\x7f\u2028😀", {"ctx-size": 64}, {"stop": ["\\", '"']}, "5m"))
    before = registry.path.read_bytes()
    with pytest.raises((RequestError, TypeError)):
        registry.add("bad", Preset("org/m", **fields))
    assert registry.path.read_bytes() == before
    assert list(Registry(registry.path).presets) == ["good"] == list(registry.presets)
    assert [path.name for path in tmp_path.iterdir()] == ["models.toml"]


def test_models_of_the_folder_are_named_with_a_system_message(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name leads to a file that the server does not serve."""
    models = clean / "models"
    models.mkdir()
    (models / "tiny.gguf").write_bytes(TINY)
    (clean / "private").mkdir()
    (clean / "private" / "model").write_bytes(TINY)
    (clean / "secret.gguf").write_bytes(TINY)
    monkeypatch.chdir(clean)
    options = ["--models-dir", "models", "--ctx-size", "256", "--allow-changes", "--memory-budget", "2000000000"]
    with served(clean, options) as server, server.client() as client:
        made = {
            "model": "kind",
            "from": "tiny",
            "system": "Be very kind.",
            "parameters": {"temperature": None, "num_predict": 3},
        }
        assert client.post("/api/create", json=made).json() == {"status": "success"}
        question = {"messages": [{"role": "user", "content": "Hi"}]}
        prompt = client.post("/apply-template", json={**question, "model": "kind"}).json()["prompt"]
        assert "Be very kind." in prompt
        answer = client.post("/v1/chat/completions", json={**question, "model": "kind"}).json()
        assert answer["usage"]["completion_tokens"] <= 3
        # Another system message under the same name replaces the first.
        client.post("/api/create", json={**made, "system": "Be very brief."})
        assert "brief" in client.post("/apply-template", json={**question, "model": "kind"}).json()["prompt"]
        assert client.post("/api/copy", json={"source": "kind", "destination": "copy"}).status_code == 200
        assert client.post("/api/copy", json={"source": "tiny", "destination": "plain:1"}).status_code == 200
        names = [row["id"] for row in client.get("/v1/models").json()["data"]]
        assert {"kind", "copy", "plain:1", "tiny"} <= set(names)
        assert client.post("/api/copy", json={"source": "kind", "destination": "tiny"}).status_code == 409
        for source in (
            "secret.gguf",
            "./secret.gguf",
            str(clean / "secret.gguf"),
            "~/secret.gguf",
            "../x",
        ):
            assert client.post("/api/copy", json={"source": source, "destination": "mine"}).status_code in (400, 404)
            body = {"model": "mine", "from": source}
            assert client.post("/api/create", json=body).status_code in (400, 404)
        for source in ("private/model", "models/tiny.gguf", "org/absent:Q8_0"):
            assert client.post("/api/copy", json={"source": source, "destination": "mine"}).status_code == 404
        # The name refers to a hub repository that has not been downloaded.
        assert client.post("/api/create", json={"model": "mine", "from": "private/model"}).status_code == 200
        assert client.post("/v1/completions", json={"model": "mine", "prompt": "x"}).status_code == 404
        assert "mine" not in [row["id"] for row in client.get("/v1/models").json()["data"]]


def test_a_preset_names_adapters(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[models.a]\nmodel = "m"\nadapters = ["style.gguf", "tone.gguf:0.5"]\n')
    preset = Registry(path).presets["a"]
    assert options_of_preset(preset) == {"adapters": (("style.gguf", 1.0), ("tone.gguf", 0.5))}
    Registry(path).add("b", preset)
    assert Registry(path).presets["b"] == preset
