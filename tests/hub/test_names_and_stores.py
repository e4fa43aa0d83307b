"""Which file is chosen, which models are found on a machine, and what the registry stores.

Oracles: llama.cpp's rule for a repository without a quantization; folders laid out as each program does it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from quire.cli.main import main
from quire.errors import CapacityError, LoadError, RequestError, UnsupportedError
from quire.hub.choose import RepositoryFile, choose, is_model_file, quantization_of
from quire.hub.locate import found_model, is_known_name, locate, preset_of, repository_of
from quire.hub.names import HubName, hub_name
from quire.hub.registry import Preset, Registry
from quire.hub.remove import remove_stored
from quire.hub.short_names import SHORT_NAMES, short_name
from quire.hub.stores import find_stored, stored_models

FAKE = b"GGUF" + bytes(100)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, without any variable that points elsewhere."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "LLAMA_CACHE",
                 "OLLAMA_MODELS", "QUIRE_MODELS", "HF_ENDPOINT"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES = [
    RepositoryFile("README.md", 10),
    RepositoryFile("m-BF16.gguf", 1600),
    RepositoryFile("m-IQ2_XXS.gguf", 300),
    RepositoryFile("m-Q4_K_M.gguf", 500),
    RepositoryFile("m-Q8_0-00001-of-00002.gguf", 400),
    RepositoryFile("m-Q8_0-00002-of-00002.gguf", 450),
    RepositoryFile("mmproj-m-Q4_K_M.gguf", 90),
    RepositoryFile("m.imatrix.gguf", 5),
    RepositoryFile("UD/m-UD-Q4_K_XL.gguf", 520),
]


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        (HubName("o/m"), None, ["m-Q4_K_M.gguf"]),
        (HubName("o/m"), 10_000, ["m-Q4_K_M.gguf"]),
        (HubName("o/m"), 400, ["m-IQ2_XXS.gguf"]),
        (HubName("o/m", tag="latest"), None, ["m-Q4_K_M.gguf"]),
        (HubName("o/m", tag="q8_0"), None, ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        (HubName("o/m", tag="BF16"), 400, ["m-BF16.gguf"]),
        (HubName("o/m", tag="Q4_K_XL"), None, ["UD/m-UD-Q4_K_XL.gguf"]),
        (HubName("o/m", tag="UD-Q4_K_XL"), None, ["UD/m-UD-Q4_K_XL.gguf"]),
        (HubName("o/m", file="m-BF16.gguf"), 1, ["m-BF16.gguf"]),
        (HubName("o/m", file="m-Q8_0-00002-of-00002.gguf"), None,
         ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        (HubName("o/m", file="mmproj-m-Q4_K_M.gguf"), None, ["mmproj-m-Q4_K_M.gguf"]),
    ],
)  # fmt: skip
def test_the_chosen_file(name: HubName, memory: int | None, expected: list[str]) -> None:
    assert [file.path for file in choose(name, FILES, memory).files] == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["m-Q5_0.gguf", "m-Q8_0.gguf"], "m-Q8_0.gguf"),
        (["m-Q5_0.gguf", "m-Q6_K.gguf"], "m-Q5_0.gguf"),
        (["plain.gguf"], "plain.gguf"),
    ],
)
def test_the_default_is_llama_cpps(files: list[str], expected: str) -> None:
    assert choose(HubName("o/m"), [RepositoryFile(path, 1) for path in files], None).files[0].path == expected


@pytest.mark.parametrize(
    ("name", "files", "error", "words"),
    [
        (
            HubName("o/m", tag="Q3_K"),
            FILES,
            LoadError,
            "has BF16, IQ2_XXS, Q4_K_M, Q8_0, UD-Q4_K_XL|has UD-Q4",
        ),
        (HubName("o/m", file="x.gguf"), FILES, LoadError, "o/m: x.gguf"),
        (HubName("o/m"), [RepositoryFile("README.md")], LoadError, "no model in o/m"),
        (HubName("o/m"), [RepositoryFile("a-00001-of-00003.gguf")], LoadError, "no model in o/m"),
    ],
)
def test_missing_files_and_quantizations_are_named(
    name: HubName, files: list[RepositoryFile], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        choose(name, files, None)


def test_a_repository_whose_files_are_all_too_large() -> None:
    with pytest.raises(CapacityError, match="o/m"):
        choose(HubName("o/m"), FILES, 100)


@pytest.mark.parametrize(
    ("path", "quantization", "is_model"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M", True),
        ("a/model.i1-IQ3_XXS.gguf", "IQ3_XXS", True),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4", True),
        ("m-TQ1_0.gguf", "TQ1_0", True),
        ("m-f16.gguf", "F16", True),
        ("llama-3.gguf", None, True),
        ("mmproj-F16.gguf", "F16", False),
        ("m-mmproj-F16.gguf", "F16", False),
        ("m.safetensors", None, False),
    ],
)
def test_names_of_files(path: str, quantization: str | None, is_model: bool) -> None:
    assert (quantization_of(path), is_model_file(path)) == (quantization, is_model)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qwen3", HubName("Qwen/Qwen3-8B-GGUF")),
        ("qwen3:latest", HubName("Qwen/Qwen3-8B-GGUF")),
        ("Qwen3:0.6B", HubName("Qwen/Qwen3-0.6B-GGUF")),
        ("qwen3:8b-q8_0", HubName("Qwen/Qwen3-8B-GGUF", tag="Q8_0")),
        ("llama3.2:1b-instruct-q4_K_M", HubName("bartowski/Llama-3.2-1B-Instruct-GGUF", tag="Q4_K_M")),
        ("qwen3:9000b", None),
        ("hello", None),
    ],
)
def test_short_names(text: str, expected: HubName | None) -> None:
    assert short_name(text) == expected


def test_every_short_name_maps_to_a_repository() -> None:
    for sizes in SHORT_NAMES.values():
        for repository in sizes.values():
            assert repository_of(repository) == HubName(repository)


def write_hub(root: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write a repository as huggingface_hub stores it: blobs, and a snapshot of links to them."""
    repository = root / ("models--" + name.replace("/", "--"))
    snapshot = repository / "snapshots" / ("ab" * 20)
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("ab" * 20)
    (repository / "blobs").mkdir()
    for path, data in files.items():
        blob = repository / "blobs" / hashlib.sha256(path.encode() + data).hexdigest()
        blob.write_bytes(data)
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).symlink_to(blob)
    return snapshot


def write_ollama(root: Path, place: str, data: bytes) -> Path:
    digest = hashlib.sha256(data).hexdigest()
    blob = root / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    manifest = root / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(data)},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


@pytest.fixture
def stores(home: Path) -> dict[str, Path]:
    """Fill every store with models, some damaged or incomplete; return the paths by name."""
    hub = home / ".cache/huggingface/hub"
    split = {"s-Q4_K_M-00001-of-00002.gguf": FAKE, "s-Q4_K_M-00002-of-00002.gguf": FAKE}
    snapshot = write_hub(
        hub, "org/m-GGUF", {"m-Q8_0.gguf": FAKE, "m-Q4_K_M.gguf": FAKE, "mmproj.gguf": FAKE, "x.txt": b""}
    )
    parts = write_hub(hub, "org/split", split)
    write_hub(hub, "org/half", {"h-00001-of-00002.gguf": FAKE})
    folder = write_hub(hub, "org/folder", {"config.json": b"{}", "model.safetensors": FAKE})
    write_hub(hub, "org/words", {"tokenizer.json": b"{}"})
    studio = home / ".lmstudio/models/lmstudio-community/Phi-GGUF/phi-Q6_K.gguf"
    studio.parent.mkdir(parents=True)
    studio.write_bytes(FAKE)
    flat = home / ".cache/llama.cpp/ggml-org_gemma_gemma-Q5_0.gguf"
    flat.parent.mkdir(parents=True)
    flat.write_bytes(FAKE)
    ollama = home / ".ollama/models"
    library = write_ollama(ollama, "registry.ollama.ai/library/llama3/8b", FAKE + b"1")
    own = write_ollama(ollama, "registry.ollama.ai/me/mine/latest", FAKE + b"2")
    foreign = write_ollama(ollama, "hf.co/org/remote-GGUF/Q4_K_M", FAKE + b"3")
    (ollama / "manifests/registry.ollama.ai/library/bad").mkdir()
    (ollama / "manifests/registry.ollama.ai/library/bad/latest").write_text("{")
    evil = json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]})
    (ollama / "manifests/registry.ollama.ai/library/bad/evil").write_text(evil)
    return {
        "ggml-org_gemma_gemma-Q5_0": flat,
        "hf.co/org/remote-GGUF:Q4_K_M": foreign,
        "llama3:8b": library,
        "lmstudio-community/Phi-GGUF:Q6_K": studio,
        "me/mine:latest": own,
        "org/folder": folder,
        "org/m-GGUF:Q4_K_M": snapshot / "m-Q4_K_M.gguf",
        "org/m-GGUF:Q8_0": snapshot / "m-Q8_0.gguf",
        "org/split:Q4_K_M": parts / "s-Q4_K_M-00001-of-00002.gguf",
    }


def test_models_of_every_store_are_found(stores: dict[str, Path]) -> None:
    found = {model.name: model for model in stored_models()}
    assert {name: model.path for name, model in found.items()} == stores
    assert found["org/split:Q4_K_M"].size_bytes == 2 * len(FAKE)
    assert found["llama3:8b"].store == "ollama"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/m-GGUF", "org/m-GGUF:Q4_K_M"),
        ("hf.co/Org/M-gguf:q8_0", "org/m-GGUF:Q8_0"),
        ("https://huggingface.co/org/m-GGUF/resolve/main/m-Q8_0.gguf", "org/m-GGUF:Q8_0"),
        ("org/folder", "org/folder"),
        ("lmstudio-community/Phi-GGUF", "lmstudio-community/Phi-GGUF:Q6_K"),
        ("ggml-org/gemma", "ggml-org_gemma_gemma-Q5_0"),
        ("llama3:8b", "llama3:8b"),
        ("me/mine", "me/mine:latest"),
        ("hf.co/org/remote-GGUF", "hf.co/org/remote-GGUF:Q4_K_M"),
        ("org/m-GGUF:Q2_K", None),
        ("org/absent", None),
    ],
)
def test_stored_models_are_not_downloaded(stores: dict[str, Path], name: str, expected: str | None) -> None:
    asked: list[HubName] = []

    def fetch(wanted: HubName) -> Path:
        asked.append(wanted)
        return Path("fetched")

    assert locate(name, fetch) == (Path("fetched") if expected is None else stores[expected])
    assert bool(asked) == (expected is None)


@pytest.mark.parametrize(
    ("variable", "folder"),
    [("HF_HUB_CACHE", "elsewhere"), ("HF_HOME", "elsewhere/hub"), ("XDG_CACHE_HOME", "elsewhere/huggingface/hub")],
)
def test_the_hubs_environment_variables(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, folder: str
) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    import subprocess
    import sys

    value = home / "elsewhere"
    monkeypatch.setenv(variable, str(value))
    write_hub(home / folder, "org/m", {"m.gguf": FAKE})
    assert [model.name for model in stored_models()] == ["org/m"]
    program = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert Path(theirs.stdout.strip()) == home / folder


def test_deleting_keeps_files_of_other_models(stores: dict[str, Path]) -> None:
    models = {model.name: model for model in stored_models()}
    first = stores["org/m-GGUF:Q4_K_M"]
    blob, other = first.resolve(), stores["org/m-GGUF:Q8_0"]
    assert remove_stored(models["org/m-GGUF:Q4_K_M"]) == len(FAKE)
    assert not first.is_symlink()
    assert not blob.exists()
    assert other.read_bytes() == FAKE
    for name in ("org/m-GGUF:Q8_0", "org/split:Q4_K_M", "org/folder"):
        remove_stored(models[name])
    left = {model.name for model in stored_models() if model.store == "hub"}
    assert left == set()
    for name in ("llama3:8b", "ggml-org_gemma_gemma-Q5_0", "lmstudio-community/Phi-GGUF:Q6_K"):
        with pytest.raises(UnsupportedError, match=r"\[rm\]"):
            remove_stored(models[name])
        assert models[name].path.exists()


# The registry


def test_the_registry_stores_presets(home: Path) -> None:
    preset = Preset("org/m:Q8_0", 'Say "hi".\nTwice\\', {"ctx-size": 96, "deterministic": True}, {"stop": ["a"]}, "5m")
    Registry().add("short", preset)
    Registry().add("again/v1:2", Preset("short", None, {"threads": 2}, {"top_k": 3}))
    again = Registry()
    assert again.get("short") == preset
    assert again.get("short:latest") == preset
    # A name may refer to another name.
    assert preset_of("again/v1:2") == Preset(
        "org/m:Q8_0", preset.system, {"ctx-size": 96, "deterministic": True, "threads": 2}, {"stop": ["a"], "top_k": 3},
        "5m",
    )  # fmt: skip
    assert is_known_name("short")
    assert not is_known_name("hello")
    assert again.remove("short")
    assert not again.remove("short")
    assert set(Registry().presets) == {"again/v1:2"}


def test_circular_names_end(home: Path) -> None:
    Registry().add("a", Preset("b"))
    Registry().add("b", Preset("a"))
    assert locate("a", None) in (Path("a"), Path("b"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x =", "TOML"),
        ("x = 1", "tables"),
        ("[models]\na = 1", "models.a"),
        ("[models.a]\nsystem = 'x'", "models.a"),
        ("[models.a]\nmodel = 'm'\ntemperature = 1", "'temperature'"),
        ("[models.a]\nmodel = 'm'\nadapters = [1]", "adapters"),
        ("[models.a]\nmodel = 'm'\ndraft = 'd'", "is an option"),
        ("[models.a]\nmodel = 'm'\noptions = 3", "options"),
        ("[models.a]\nmodel = 'm'\nkeep-alive = true", "keep-alive"),
    ],
)
def test_invalid_registries(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(LoadError, match=words):
        Registry(path)


@pytest.mark.parametrize("name", ["", "a b", "../x", "m.gguf", "a\n", "x" * 200])
def test_invalid_names_are_rejected(tmp_path: Path, name: str) -> None:
    registry = Registry(tmp_path / "models.toml")
    with pytest.raises(RequestError):
        registry.add(name, Preset("m"))


def test_ollama_names_outside_the_table(stores: dict[str, Path]) -> None:
    assert is_known_name("llama3:8b")
    assert find_stored("llama3") is None  # means llama3:latest, which is not there


def test_cp_stores_absolute_paths(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "m.gguf").write_bytes(FAKE)
    for words, model in (
        ("m.gguf mine", str(home / "m.gguf")), ("~/m.gguf mine2", str(home / "m.gguf")), ("mine again", "mine"),
        ("org/name:Q8_0 theirs", "org/name:Q8_0"), ("qwen3:0.6b short", "qwen3:0.6b"),
    ):  # fmt: skip
        assert main(["cp", *words.split()]) == 0
        assert Registry().presets[words.split()[1]].model == model
    monkeypatch.chdir("/")
    assert locate("again", None) == home / "m.gguf"


@pytest.mark.parametrize("source", ["absent.gguf", "nobody", "./nothing"])
def test_cp_rejects_unknown_models(home: Path, capsys: pytest.CaptureFixture[str], source: str) -> None:
    assert main(["cp", source, "mine"]) == 3
    assert f"[cp] no such model: {source!r}" in capsys.readouterr().err
    assert Registry().presets == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("org/name:Q4_K_M", HubName("org/name", tag="Q4_K_M")),
        ("hf.co/org/name-GGUF:IQ3_XXS", HubName("org/name-GGUF", tag="IQ3_XXS")),
        ("huggingface.co/org/na.me", HubName("org/na.me")),
        ("hf://org/name", HubName("org/name")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("https://huggingface.co/org/name/tree/dev", HubName("org/name", revision="dev")),
        ("https://huggingface.co/org/name/resolve/main/sub/a.gguf?download=true",
         HubName("org/name", file="sub/a.gguf", revision="main")),
        ("https://huggingface.co/org/name/blob/main/a.gguf", HubName("org/name", file="a.gguf", revision="main")),
        ("name", None),
        ("a/b/c", None),
        ("../models", None),
        ("./model", None),
        ("/abs/path", None),
        ("org/", None),
        ("What is 3/4?", None),
        ("https://example.org/org/name", None),
        ("", None),
    ],
)  # fmt: skip
def test_hub_names(monkeypatch: pytest.MonkeyPatch, text: str, expected: HubName | None) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert hub_name(text) == expected


def test_urls_of_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/")
    assert hub_name("http://127.0.0.1:9/org/name") == HubName("org/name")


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "a/" + "b" * 5000])
def test_names_too_long_for_a_path_are_not_found(name: str) -> None:
    with pytest.raises(LoadError, match=r"no such model|not found"):
        found_model(name, None)
