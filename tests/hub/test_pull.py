"""Download models from a local test hub, as processes; tests/compatibility has more.

Oracles: the bytes that the hub serves, the requests it receives, and huggingface_hub's own view of its cache.
"""

from __future__ import annotations

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
    """A home folder of its own, and a hub."""

    hub: LocalHub
    home: Path

    def __call__(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        # Drop variables of hubs and engines, but keep those that preload sanitizers.
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
        "org/tiny-GGUF": {"README.md": b"hello", "tiny-BF16.gguf": FAKE, "tiny-Q8_0.gguf": TINY},
        "org/large-GGUF": {"large-Q8_0.gguf": LARGE},
    }
    with local_hub(repositories) as running:
        yield running


@pytest.fixture
def machine(hub: LocalHub, tmp_path: Path) -> Machine:
    hub.asked.clear()
    return Machine(hub, tmp_path)


def test_interrupted_downloads_resume(machine: Machine) -> None:
    # The library writes pieces of 10 MiB and resumes after the last one.
    machine.hub.cut["large-Q8_0.gguf"] = 11 << 20
    path = machine.pulled("org/large-GGUF")
    assert path.read_bytes() == LARGE
    ranges = [asked[2] for asked in machine.hub.asked if asked[0] == "GET" and asked[1].endswith("large-Q8_0.gguf")]
    assert ranges == [None, f"bytes={10 << 20}-"]


def test_a_file_with_a_wrong_hash_is_deleted(machine: Machine) -> None:
    machine.hub.wrong.add("tiny-Q8_0.gguf")
    done = machine("pull", "org/tiny-GGUF")
    machine.hub.wrong.clear()
    assert done.returncode == 3
    assert "SHA-256" in done.stderr
    assert done.stderr.count("\n") == 2  # the note about the download, and this error
    assert machine.pulled("org/tiny-GGUF").read_bytes() == TINY


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        (("org/tiny-GGUF",), {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids"),
        (("org/tiny-GGUF",), {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot download org/tiny-GGUF"),
    ],
)
def test_hub_errors_are_one_line(
    machine: Machine, arguments: tuple[str, ...], more: dict[str, str], words: str
) -> None:
    done = machine("pull", *arguments, **more)
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("quire: [hub] ")
    assert words in last


def test_a_missing_library_names_the_extra(machine: Machine) -> None:
    (machine.home / "huggingface_hub.py").write_text("raise ImportError('absent')")
    path = f"{machine.home}{os.pathsep}{PACKAGE.parent}"
    done = machine("pull", "org/tiny-GGUF", PYTHONPATH=path)
    assert done.returncode == 1
    assert "pip install 'quire-llm[hub]'" in done.stderr
