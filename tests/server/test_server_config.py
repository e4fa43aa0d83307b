"""Server options from the environment and from a file.

Oracle: the settings from the same options on the command line.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from quire.cli import serve
from quire.cli.serve_config import from_environment, from_file, read_env_file
from quire.errors import RequestError
from quire.params.engine_options import EngineConfig
from quire.server.service.service import Service


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run without the machine's own environment."""
    for name in ("HOST", "PORT", "MODEL_PATH", "BATCH_SIZE", "QUIRE_HOST", "QUIRE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the model files that tests name, in the working folder."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("m", "other", "given", "d"):
        (folder / f"{name}.gguf").touch()
    monkeypatch.chdir(folder)


def opened(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Any, str | None, dict[str, Any]]:
    """Return what the command would open: settings, path and the engine's configuration."""
    seen: list[Any] = []

    def open_service(*given: Any) -> Service:
        seen.append(given[:3])
        raise click.Abort

    monkeypatch.setattr("quire.server.worker.launch.launch", lambda: None)
    monkeypatch.setattr("quire.server.service.service.open_service", open_service)
    with pytest.raises(click.Abort):
        serve.command.main(list(arguments), standalone_mode=False)
    return seen[0]  # type: ignore[no-any-return]


def test_precedence_of_command_line_environment_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "quire.toml"
    config.write_text(
        'port = 1001\nctx-size = 512\nmodel = "m.gguf"\nalias = ["x", "y"]\nmax_queue = 7\nlenient = true\n'
    )
    monkeypatch.setenv("PORT", "1002")
    monkeypatch.setenv("CPU_THREADS", "3")
    monkeypatch.setenv("BATCH_SIZE", "64")
    settings, path, engine = opened(monkeypatch, "--config", str(config), "--threads", "1")
    assert (settings.port, settings.max_queue, settings.aliases, settings.lenient) == (1002, 7, ("x", "y"), True)
    assert path == "m.gguf"
    assert (engine["n_ctx"], engine["threads"], engine["max_step_tokens"]) == (512, 1, 64)
    monkeypatch.setenv("QUIRE_PORT", "1003")
    monkeypatch.setenv("MODEL_PATH", "other.gguf")
    settings, path, _ = opened(monkeypatch, "--config", str(config), "given.gguf")
    assert (settings.port, path) == (1003, "given.gguf")
    assert opened(monkeypatch)[1] == "other.gguf"


def test_missing_sizes_are_left_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"n_ctx", "n_blocks", "max_sequences", "max_step_tokens"}
    assert not sizes & set(opened(monkeypatch)[2])
    given = opened(monkeypatch, "-c", "64", "--cache-blocks", "5", "--max-sequences", "2", "--batch-size", "16")[2]
    assert {name: given[name] for name in sizes} == {
        "n_ctx": 64, "n_blocks": 5, "max_sequences": 2, "max_step_tokens": 16,
    }  # fmt: skip


def test_every_option_of_the_model_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["-c", "512", "-t", "3", "--cpu-mask", "3", "--kernels", "cpu", "--isa", "avx2", "--kv-dtype", "bf16"]
    arguments += ["--load", "copy", "--packed-cache", "folder", "--device", "cpu", "--deterministic"]
    arguments += ["--policy", "fifo", "--max-sequences", "3", "--cache-blocks", "9", "--batch-size", "8"]
    arguments += ["--step-time", "0.5", "--snapshot-tokens", "64", "--quantize", "Q8_0"]
    arguments += ["--cache-disk", "d", "--cache-disk-size", "2G", "-cram", "-1"]
    arguments += ["-tp", "2", "-pp", "3", "--taps", "0,3"]
    arguments += [
        "--mmproj",
        "m.gguf",
        "-md",
        "d.gguf",
        "--speculation",
        "auto",
        "--draft-max",
        "8",
        "--draft-min",
        "1",
    ]
    arguments += ["--n-cpu-moe", "2", "-ot", "ffn=CPU", "--n-cpu-ffn", "1", "--fit", "off", "--fit-target", "512"]
    numbers = {"rope_scale": 2.0, "rope_freq_base": 3.0, "yarn_orig_ctx": 4}
    numbers |= {"yarn_ext_factor": 0.5, "yarn_attn_factor": 6.0, "yarn_beta_fast": 7.0, "yarn_beta_slow": 8.0}
    for name, number in numbers.items():
        arguments += [f"--{name.replace('_', '-')}", str(number)]
    arguments += ["--rope-scaling", "yarn", "--override-kv", "a=int:1", "--hf-overrides", '{"b": 2}']
    arguments += ["--fit-ctx", "2048", "--split-mode", "none", "--tensor-split", "3,1", "--main-gpu", "0"]
    arguments += [
        "--lora-modules",
        "x=a=b.gguf",
        "--max-loras",
        "5",
        "--max-lora-rank",
        "64",
        "--lora-cache-size",
        "1M",
    ]
    arguments += ["--control-vector-scaled", "v.gguf:0.5", "--control-vector-layer-range", "1", "2"]
    arguments += ["--logits-processors", "p=m:f", "--enable-prompt-embeds"]
    engine = opened(monkeypatch, *arguments)[2]
    expected: dict[str, object] = {**numbers, "rope_scaling": "yarn"}
    expected |= {"override_kv": (("a", 1),), "hf_overrides": '{"b": 2}'}
    expected |= {"n_cpu_moe": 2, "override_tensor": (("ffn", "CPU"),)}
    expected |= {"n_cpu_ffn": 1, "fit": "off", "fit_target": 512, "fit_ctx": 2048}
    expected |= {"split_mode": "none", "tensor_split": (3.0, 1.0), "main_gpu": 0}
    expected |= {"n_ctx": 512, "threads": 3, "cpu_mask": 3, "kernels": "cpu", "isa": "avx2", "kv_dtype": "bf16"}
    expected |= {"load": "copy", "packed_cache": "folder", "device": "cpu", "deterministic": True}
    expected |= {"policy": "fifo", "max_sequences": 3, "n_blocks": 9, "max_step_tokens": 8, "step_s": 0.5}
    expected |= {"lora_modules": (("x", "a=b.gguf"),), "max_loras": 5, "max_lora_rank": 64, "lora_cache_size": 1 << 20}
    expected |= {"snapshot_tokens": 64, "quantize": "Q8_0"}
    expected |= {"control_vectors": (("v.gguf", 0.5),), "control_vector_layers": (1, 2)}
    expected |= {"logits_processors": ("p=m:f",), "enable_prompt_embeds": True}
    expected |= {"cache_disk": "d", "cache_disk_size": 2 << 30, "cache_ram": 2**60}
    expected |= {"mmproj": "m.gguf", "draft": "d.gguf", "speculation": "auto", "draft_max": 8, "draft_min": 1}
    expected |= {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "taps": (0, 3)}
    # --memory-budget belongs to the server; -ngl cannot be combined with --device cpu, nor --rope-freq-scale with
    # --rope-scale.
    others = {"memory_bytes", "adapters", "n_gpu_layers", "rope_freq_scale"}
    assert set(expected) == {entry.name for entry in fields(EngineConfig)} - others
    assert {name: engine.get(name) for name in expected} == expected
    engine = opened(monkeypatch, "--lora", "a.gguf,c:b.gguf", "--lora-scaled", "b.gguf:0.5")[
        2
    ]  # without a packed cache
    assert engine["adapters"] == (("a.gguf", 1.0), ("c:b.gguf", 1.0), ("b.gguf", 0.5))


def test_boolean_variables() -> None:
    for name in ("ENABLE_SPECULATIVE", "ENABLE_CONTINUOUS_BATCHING"):
        with pytest.raises(click.UsageError, match=name):
            from_environment({name: "perhaps"})
    drafts = {"QUIRE_DRAFT_MODEL_PATH": "draft.gguf", "SPECULATION_DEPTH": "4"}
    assert from_environment(drafts) == {"draft": "draft.gguf", "draft_max": "4"}
    assert from_environment({"ENABLE_SPECULATIVE": "true", **drafts})["speculation"] == "auto"
    assert from_environment({**drafts, "SPECULATION_DEPTH": "0"}) == {}
    off = {"ENABLE_SPECULATIVE": "False", "ENABLE_CONTINUOUS_BATCHING": "1", "HOST": ""}
    assert from_environment(off) == {}
    # Settings of a draft model are ignored if speculation is off.
    assert from_environment({**off, "DRAFT_MODEL_PATH": "draft.gguf", "SPECULATION_DEPTH": "4"}) == {}


EXAMPLE = """
# a server's variables
export MODEL_PATH=m.gguf
GPU_LAYERS=99
CONTEXT_SIZE=4096   # tokens
BATCH_SIZE=512
CPU_THREADS='3'
HOST="127.0.0.1"
PORT=8081
MAX_BATCH_SIZE=8
BATCH_TIMEOUT_MS=100
ENABLE_CONTINUOUS_BATCHING=true
ENABLE_SPECULATIVE=false
SPECULATION_DEPTH=4
KV_CACHE_POOL_SIZE=1000
SCHEDULING_STRATEGY=FIFO
SOMETHING_ELSE=1
"""


@pytest.mark.parametrize("given", [("--env-file", "variables"), ()])
def test_a_file_of_variables_starts_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
) -> None:
    monkeypatch.setattr("os.environ", {"PORT": "8082"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()
    (tmp_path / (given[1] if given else ".env")).write_text(EXAMPLE)
    settings, path, engine = opened(monkeypatch, *given)
    assert path == "m.gguf"
    expected = {
        "device": "auto", "n_gpu_layers": 99, "n_ctx": 4096, "max_step_tokens": 512, "threads": 3, "max_sequences": 8, "n_blocks": 1000,
        "policy": "fifo",
    }  # fmt: skip
    assert {name: engine[name] for name in expected} == expected
    # The environment takes precedence over the file.
    assert (settings.host, settings.port, settings.batch_delay_s) == ("127.0.0.1", 8082, 0.1)
    shown = capsys.readouterr().err
    assert "GPU_LAYERS" in shown
    assert "SOMETHING_ELSE" not in shown


@pytest.mark.parametrize("text", ["A B=1", "PORT", "\xff", "A" * 70_000])
def test_invalid_env_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "variables").write_bytes(text.encode("latin-1"))
    with pytest.raises(click.UsageError, match="variables"):
        read_env_file(tmp_path / "variables")


def test_keys_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("from-a-file\n")
    settings = opened(monkeypatch, "--api-key", "first-secret", "--api-key-file", str(keys))[0]
    assert settings.api_keys == ("from-a-file", "first-secret")
    with pytest.raises(RequestError, match="8 or more printable"):
        serve.command.main(["--api-key", "short"], standalone_mode=False)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot = 1", "prot"),
        ("port = [1]", "port"),
        ("alias = 'x'", "a list"),
        ("port =", "TOML"),
        ("config = 'x'", "config"),
    ],
)
def test_invalid_config_files(tmp_path: Path, text: str, word: str) -> None:
    config = tmp_path / "quire.toml"
    config.write_text(text)
    with pytest.raises(click.UsageError, match=word):
        from_file(config, serve.command)


def test_values_of_a_file_are_checked_like_options(tmp_path: Path) -> None:
    config = tmp_path / "quire.toml"
    config.write_text("port = 99999")
    with pytest.raises(click.BadParameter, match="99999"):
        serve.command.main(["--config", str(config)], standalone_mode=False)
