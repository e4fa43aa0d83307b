"""Fetching models from a hub, as processes, against a hub that the test runs.

Oracles: the bytes that the hub has, the requests that it gets, huggingface_hub's own idea of what is in its cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import quire
from local_hub import LocalHub, local_hub

PACKAGE = Path(quire.__file__).resolve().parent
TINY = (PACKAGE / "data" / "tiny-chat-q8_0.gguf").read_bytes()
FAKE = b"GGUF" + bytes(5000)
FOREIGN = ("HF_", "HUGGINGFACE_", "QUIRE_", "LLAMA_", "OLLAMA_", "XDG_")
LARGE = b"GGUF" + bytes(range(256)) * (48 << 10)

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")


@dataclass
class Machine:
    """A home of its own, and a hub."""

    hub: LocalHub
    home: Path

    def __call__(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        # Variables of hubs and engines stay outside; what preloads the sanitizers does not.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return subprocess.run(
            [sys.executable, "-m", "quire", *arguments],
            capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL, cwd=self.home,
            env={
                **kept, "HOME": str(self.home), "PYTHONPATH": str(PACKAGE.parent),
                "HF_ENDPOINT": self.hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **more,
            },
        )  # fmt: skip

    def pulled(self, *arguments: str, **more: str) -> Path:
        done = self("pull", *arguments, **more)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    repositories = {
        "org/tiny-GGUF": {"README.md": b"hello", "tiny-BF16.gguf": FAKE, "tiny-Q8_0.gguf": TINY, "mmproj-Q4_K_M.gguf": FAKE},
        "org/large-GGUF": {"large-Q8_0.gguf": LARGE},
        "org/split-GGUF": {
            "Q4_K_M/split-Q4_K_M-00001-of-00002.gguf": FAKE, "Q4_K_M/split-Q4_K_M-00002-of-00002.gguf": FAKE + b"2",
        },
        "org/checkpoint": {
            "config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": FAKE, "pytorch_model.bin": FAKE,
        },
        "org/gated-GGUF": {"gated-Q8_0.gguf": FAKE},
        "Qwen/Qwen3-0.6B-GGUF": {"Qwen3-0.6B-Q8_0.gguf": FAKE},
    }  # fmt: skip
    with local_hub(repositories) as running:
        running.gated.add("org/gated-GGUF")
        yield running


@pytest.fixture
def machine(hub: LocalHub, tmp_path: Path) -> Machine:
    hub.asked.clear()
    return Machine(hub, tmp_path)


def test_a_model_is_fetched_used_listed_copied_and_deleted(machine: Machine) -> None:
    path = machine.pulled("hf.co/org/tiny-GGUF:q8_0")
    assert path.read_bytes() == TINY
    n_asked = len(machine.hub.asked)
    # What is here is not asked for again, and needs no hub.
    done = machine("run", "org/tiny-GGUF", "Who are you?", "--temp", "0", "-n", "4", HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stdout) == (0, "I am Tiny,\n"), done.stderr
    assert len(machine.hub.asked) == n_asked
    (row,) = json.loads(machine("list", "--json").stdout)["models"]
    assert (row["name"], row["store"], row["size_bytes"]) == ("org/tiny-GGUF:Q8_0", "hub", len(TINY))
    assert (
        machine("cp", "org/tiny-GGUF:Q8_0", "me", "--sampling", "temperature=0", "--option", "ctx-size=96").returncode
        == 0
    )
    done = machine("run", "me", "Who are you?", "-n", "4", "--json")
    assert json.loads(done.stdout)["text"] == "I am Tiny,", done.stderr
    shown = json.loads(machine("show", "me", "--json").stdout)
    assert (shown["path"], shown["options"]) == (str(path), {"ctx-size": 96})
    assert machine("rm", "me").returncode == 0
    assert path.exists()
    assert "deleted" in machine("rm", "org/tiny-GGUF").stderr
    assert not path.exists()
    assert json.loads(machine("list", "--json").stdout) == {"models": [], "names": {}}
    assert machine("rm", "org/tiny-GGUF").returncode == 3


def test_what_was_begun_goes_on(machine: Machine) -> None:
    # The library writes pieces of 10 MiB, and goes on after the last one.
    machine.hub.cut["large-Q8_0.gguf"] = 11 << 20
    path = machine.pulled("org/large-GGUF")
    assert path.read_bytes() == LARGE
    ranges = [asked[2] for asked in machine.hub.asked if asked[0] == "GET" and asked[1].endswith("large-Q8_0.gguf")]
    assert ranges == [None, f"bytes={10 << 20}-"]


def test_a_wrong_file_is_not_kept(machine: Machine) -> None:
    machine.hub.wrong.add("tiny-Q8_0.gguf")
    done = machine("pull", "org/tiny-GGUF")
    machine.hub.wrong.clear()
    assert done.returncode == 3
    assert "must have the SHA-256" in done.stderr
    assert done.stderr.count("\n") == 2  # that it is fetched, and this
    assert machine.pulled("org/tiny-GGUF").read_bytes() == TINY


def test_all_parts_of_a_split_model_come(machine: Machine) -> None:
    path = machine.pulled("org/split-GGUF")
    assert path.name == "split-Q4_K_M-00001-of-00002.gguf"
    assert path.with_name("split-Q4_K_M-00002-of-00002.gguf").read_bytes() == FAKE + b"2"
    assert machine.pulled(f"{machine.hub.address}/org/split-GGUF") == path


def test_a_checkpoint_is_a_folder(machine: Machine) -> None:
    path = machine.pulled("org/checkpoint")
    assert sorted(each.name for each in path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_short_names_and_files(machine: Machine) -> None:
    assert machine.pulled("qwen3:0.6b").name == "Qwen3-0.6B-Q8_0.gguf"
    done = machine("tokenize", "--hf-repo", "org/tiny-GGUF", "--hf-file", "tiny-Q8_0.gguf", "--ids", "Once")
    assert done.returncode == 2  # tokenize has no such option
    done = machine("run", "-hf", "org/tiny-GGUF", "-hff", "tiny-Q8_0.gguf", "--temp", "0", "-n", "4", "Who are you?")
    assert done.stdout == "I am Tiny,\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        (("org/absent",), {}, "org/absent must be a repository"),
        (("org/tiny-GGUF:Q2_K",), {}, "must be a quantization of org/tiny-GGUF but there are BF16, Q8_0"),
        (("org/tiny-GGUF",), {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        (("org/gated-GGUF",), {}, "terms are to be accepted"),
        (("org/tiny-GGUF",), {"HF_ENDPOINT": "http://127.0.0.1:9"}, "must be fetched but"),
    ],
)
def test_errors_are_one_line(machine: Machine, arguments: tuple[str, ...], more: dict[str, str], words: str) -> None:
    done = machine("pull", *arguments, **more)
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("quire: [hub] ")
    assert words in last


def test_a_token_opens_what_is_gated(machine: Machine) -> None:
    assert machine.pulled("org/gated-GGUF", "--hf-token", "hf_x").read_bytes() == FAKE


def test_without_the_library_the_extra_is_named(machine: Machine) -> None:
    (machine.home / "huggingface_hub.py").write_text("raise ImportError('absent')")
    path = f"{machine.home}{os.pathsep}{PACKAGE.parent}"
    done = machine("pull", "org/tiny-GGUF", PYTHONPATH=path)
    assert done.returncode == 1
    assert "pip install 'quire[hub]'" in done.stderr
